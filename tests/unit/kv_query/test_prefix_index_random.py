"""The index against caches that hold sets of prefixes, over random events."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from motor.coordinator.kv_query.kv_events import KvEvent
from motor.coordinator.kv_query.port import CacheScope, EndpointKey
from motor.coordinator.kv_query.prefix_index import PrefixIndex
from tests.unit.kv_query.engine_cache import EngineCache, Scope

SCOPES: list[Scope] = [(None, None), ("adapter", None), (None, "salt"), ("adapter", "salt")]
SIZES = (1, 4, 100, 300)


def prompts(random_source: random.Random, block_size: int) -> list[list[int]]:
    """Few ids and many shared beginnings, longer than a span."""
    length = block_size * 8 if block_size > 4 else 600
    family = [random_source.randrange(3) for _ in range(length)]
    found = []
    for _ in range(6):
        cut = random_source.randrange(len(family))
        found.append(
            family[:cut] + [random_source.randrange(3) for _ in range(random_source.randrange(4 * block_size))]
        )
    return [*found, family]


class World:
    """Two engines and an index that hears of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a repeatable sequence is what it is for
        size = self.random.choice(SIZES)
        self.caches = {EndpointKey(f"e{number}"): EngineCache(size, number) for number in range(2)}
        self.index = PrefixIndex()
        for key in self.caches:
            self.index.add_endpoint(key, "m")
        self.prompts = prompts(self.random, size)

    def run_step(self) -> tuple[EndpointKey, list[KvEvent]]:
        key = self.random.choice(list(self.caches))
        cache = self.caches[key]
        action = self.random.random()
        if action < 0.6:
            return key, self._store(cache)
        if action < 0.95 and cache.held:
            return key, [cache.remove(self.random.choice(sorted(cache.held, key=repr)))]
        if action > 0.99:
            return key, [cache.clear()]
        return key, []

    def _store(self, cache: EngineCache) -> list[KvEvent]:
        """Store a prompt in chunks from the first block that is missing, or announce it all again."""
        scope, ids = self.random.choice(SCOPES), self.random.choice(self.prompts)
        num_blocks = len(ids) // cache.block_size
        position = self.random.choice((0, cache.matched_tokens(scope, ids) // cache.block_size))
        events: list[KvEvent] = []
        while position < num_blocks:
            end = min(num_blocks, position + self.random.choice((1, 2, 7, 300)))
            events.append(cache.store(scope, ids, position, end))
            position = end
        return events

    def check(self) -> None:
        for ids in self.prompts:
            for scope in SCOPES:
                expected = {key: cache.matched_tokens(scope, ids) for key, cache in self.caches.items()}
                expected = {key: count for key, count in expected.items() if count}
                assert self.index.matched_tokens(ids, CacheScope("m", *scope)) == expected


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_in_order(seed: int) -> None:
    world = World(seed)
    for _ in range(30):
        key, events = world.run_step()
        for event in events:
            for _ in range(world.random.choice((1, 1, 2))):
                world.index.apply(key, event)
        world.check()
    assert world.index.statistics().num_blocks == sum(len(cache.held) for cache in world.caches.values())
    assert world.index.statistics().num_contradictions == 0


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_children_before_parents(seed: int) -> None:
    world = World(seed)
    for _ in range(15):
        key, events = world.run_step()
        world.random.shuffle(events)
        for event in events:
            world.index.apply(key, event)
        world.check()


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_lost_events_make_no_match_that_is_not_there(seed: int) -> None:
    """Losing what was stored only hides it; after a clear and the same events again the index is right."""
    world = World(seed)
    told: dict[EndpointKey, list[KvEvent]] = {key: [] for key in world.caches}
    for _ in range(20):
        key, events = world.run_step()
        told[key] += events
        for event in events:
            is_store = hasattr(event, "token_ids")
            if not is_store or world.random.random() < 0.6:
                world.index.apply(key, event)
        for ids in world.prompts:
            for scope in SCOPES:
                for endpoint, count in world.index.matched_tokens(ids, CacheScope("m", *scope)).items():
                    assert count <= world.caches[endpoint].matched_tokens(scope, ids)
    for key, events in told.items():
        world.index.clear(key)
        for event in events:
            world.index.apply(key, event)
    world.check()


@given(st.integers(0, 2**32), st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_bounded(seed: int, max_blocks: int) -> None:
    """Eviction only hides what is there, and the bound holds after every event."""
    world = World(seed)
    world.index = PrefixIndex(max_blocks=max_blocks, max_parked_blocks=max_blocks)
    for key in world.caches:
        world.index.add_endpoint(key, "m")
    for _ in range(20):
        key, events = world.run_step()
        for event in events:
            world.index.apply(key, event)
            statistics = world.index.statistics()
            assert statistics.num_blocks + statistics.num_holes + statistics.num_parked_blocks <= max_blocks
        for ids in world.prompts:
            for scope in SCOPES:
                for endpoint, count in world.index.matched_tokens(ids, CacheScope("m", *scope)).items():
                    assert count <= world.caches[endpoint].matched_tokens(scope, ids)
    for key in world.caches:
        world.index.remove_endpoint(key)
    assert world.index.statistics().num_distinct_blocks == 0
