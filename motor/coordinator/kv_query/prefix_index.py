"""The embedded KV Conductor's index: which endpoint holds which prefix. Mutable: everything.

One thread writes. Any thread may ask at any time without a lock: an answer is put together from single dictionary and
attribute reads, each of which sees a block either before or after a change. While events are being taken in, an answer
may lie between two states of a cache, as it would anyway a moment later; it never claims more than a true prefix whose
every block was held when it was looked at.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from motor.coordinator.kv_query.endpoint_blocks import Block, EndpointBlocks
from motor.coordinator.kv_query.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent
from motor.coordinator.kv_query.port import CacheScope, EndpointKey
from motor.coordinator.kv_query.prompt_path import PromptPath, root_digest
from motor.coordinator.kv_query.speculation import Speculation

_FULL_ATTENTION = frozenset({None, "full_attention", "mla_attention", "sink_full_attention", "unknown"})
_REMOTE = "REMOTE"
_EVICTED_SHARE = 64
"""An eviction frees this part of the bound at a time."""


@dataclass(frozen=True, slots=True)
class IndexStatistics:
    """What the index holds and what it had to pass over.

    Attributes:
        num_endpoints: Endpoints that are registered.
        num_blocks: Blocks held, summed over endpoints.
        num_distinct_blocks: The same without repetitions.
        num_holes: Removed blocks that held ones extend.
        num_parked_blocks: Blocks that wait for their parents.
        num_orphans: Blocks that waited in vain.
        num_evicted: Blocks given up to stay within the bound.
        num_malformed: Events that contradict themselves.
        num_contradictions: Times that an endpoint's blocks were given up because it contradicted itself.
    """

    num_endpoints: int
    num_blocks: int
    num_distinct_blocks: int
    num_holes: int
    num_parked_blocks: int
    num_orphans: int
    num_evicted: int
    num_malformed: int
    num_contradictions: int


class PrefixIndex:
    """Takes events in, and tells matched prefixes.

    Args:
        max_blocks: Blocks kept, summed over endpoints; each takes about 400 bytes.
        max_parked_blocks: Blocks per endpoint that may wait for their parents.
        mediums: Where a block must be to count.
    """

    def __init__(
        self,
        *,
        max_blocks: int = 2_000_000,
        max_parked_blocks: int = 4096,
        mediums: frozenset[str] = frozenset({"GPU"}),
    ) -> None:
        self._max_blocks = max_blocks
        self._max_parked_blocks = max_parked_blocks
        self._mediums = frozenset(medium.upper() for medium in mediums)
        self._blocks: dict[int, Block] = {}
        self._endpoints: dict[EndpointKey, EndpointBlocks] = {}
        self._by_bit: tuple[EndpointBlocks | None, ...] = ()
        self._block_sizes: tuple[int, ...] = ()
        self._num_kept = 0
        self._num_evicted = 0

    def add_endpoint(self, key: EndpointKey, model: str) -> None:
        """Begin to keep an endpoint's blocks; one that is there already loses those it has."""
        self.remove_endpoint(key)
        number = self._by_bit.index(None) if None in self._by_bit else len(self._by_bit)
        endpoint = EndpointBlocks(key, model, 1 << number, self._blocks, self._max_parked_blocks)
        self._endpoints[key] = endpoint
        self._by_bit = (*self._by_bit[:number], endpoint, *self._by_bit[number + 1 :])

    def remove_endpoint(self, key: EndpointKey) -> None:
        """Forget an endpoint; an unknown one is none."""
        endpoint = self._endpoints.get(key)
        if endpoint is not None:
            self.clear(key)
            del self._endpoints[key]
            self._by_bit = tuple(None if one is endpoint else one for one in self._by_bit)

    def clear(self, key: EndpointKey) -> None:
        """Forget an endpoint's blocks."""
        endpoint = self._endpoints[key]
        self._num_kept -= endpoint.num_kept
        endpoint.clear()

    def bit_of(self, key: EndpointKey) -> int:
        """Return what stands for an endpoint in bit sets; 0 if it is not registered."""
        endpoint = self._endpoints.get(key)
        return 0 if endpoint is None else endpoint.bit

    def apply(self, key: EndpointKey, event: KvEvent) -> None:
        """Take in an endpoint's event.

        Raises:
            KeyError: The endpoint is not registered.
        """
        endpoint = self._endpoints[key]
        num_before = endpoint.num_kept
        match event:
            case BlockStored() if self._counts(event) and self._is_leading_group(endpoint, event):
                if event.block_size not in self._block_sizes:
                    self._block_sizes = (*self._block_sizes, event.block_size)
                endpoint.store(event)
            case BlockRemoved() if self._counts(event) and event.group_idx in (None, endpoint.group):
                endpoint.remove(event.block_hashes)
            case AllBlocksCleared():
                endpoint.clear()
        self._num_kept += endpoint.num_kept - num_before
        if self._num_kept > self._max_blocks:
            self._evict()

    def block_sizes(self) -> tuple[int, ...]:
        """Return the block sizes that engines have told of."""
        return self._block_sizes

    def matched_tokens(
        self, token_ids: Sequence[int], scope: CacheScope, speculation: Speculation | None = None
    ) -> dict[EndpointKey, int]:
        """Return how many leading tokens each endpoint would find in its cache, without those that would find none.

        As in vLLM only full blocks count, and at least one token is left to compute.

        Args:
            token_ids: The prompt.
            scope: What it can share blocks with.
            speculation: Prefixes that endpoints are about to hold, which count as held.
        """
        matches: dict[EndpointKey, int] = {}
        for size in self._block_sizes:
            path = PromptPath(token_ids, root_digest(scope, size), size, (len(token_ids) - 1) // size)
            try:
                counts = self._walk(path, speculation if speculation else None)
            except struct.error:
                return {}  # ids that no engine can hold
            for endpoint, num_blocks in counts:
                num_reachable = _before_holes(endpoint, path, num_blocks)
                matches[endpoint.key] = max(num_reachable * size, matches.get(endpoint.key, 0))
        return {key: num_tokens for key, num_tokens in matches.items() if num_tokens}

    def statistics(self) -> IndexStatistics:
        """Count."""
        endpoints = tuple(self._endpoints.values())
        return IndexStatistics(
            num_endpoints=len(endpoints),
            num_blocks=sum(one.num_held for one in endpoints),
            num_distinct_blocks=len(self._blocks),
            num_holes=sum(len(one.holes) for one in endpoints),
            num_parked_blocks=sum(one.parked.num_blocks for one in endpoints),
            num_orphans=sum(one.parked.num_dropped for one in endpoints),
            num_evicted=self._num_evicted,
            num_malformed=sum(one.num_malformed for one in endpoints),
            num_contradictions=sum(one.num_contradictions for one in endpoints),
        )

    def _counts(self, event: BlockStored | BlockRemoved) -> bool:
        return (event.medium is None or event.medium.upper() in self._mediums) and event.locality != _REMOTE

    def _is_leading_group(self, endpoint: EndpointBlocks, event: BlockStored) -> bool:
        """Whether the event is of the group that stands for all: the first one with full attention that is told of."""
        if endpoint.group is None and event.kv_cache_spec_kind in _FULL_ATTENTION:
            endpoint.group = event.group_idx
        return event.kv_cache_spec_kind in _FULL_ATTENTION and event.group_idx in (None, endpoint.group)

    def _evict(self) -> None:
        num_excess = self._num_kept - self._max_blocks + self._max_blocks // _EVICTED_SHARE
        while num_excess > 0:
            largest = max(self._endpoints.values(), key=lambda endpoint: endpoint.num_kept)
            num_before = largest.num_kept
            self._num_evicted += largest.evict(num_excess)
            num_freed = num_before - largest.num_kept
            if not num_freed:
                largest.clear()  # only parked blocks are left
                num_freed = num_before - largest.num_kept
            self._num_kept -= num_freed
            num_excess -= num_freed

    def _walk(self, path: PromptPath, speculation: Speculation | None) -> list[tuple[EndpointBlocks, int]]:
        """Return how many blocks of a prompt each endpoint holds, holes left out of account."""
        found: list[tuple[int, int]] = []
        by_bit, find = self._by_bit, self._blocks.get
        alive = (1 << len(by_bit)) - 1
        num_blocks = 0
        for digest in path:
            block = find(digest)
            holders = 0 if block is None else block.endpoints
            if speculation is not None:
                holders |= speculation.endpoints(digest)
            end = min(num_blocks + path.span_blocks, path.num_blocks)
            leaving = alive & ~holders
            if leaving:
                found += self._look_inside(path, (num_blocks, end, leaving), speculation)
                alive &= holders
                if not alive:
                    break
            num_blocks = end
        found.append((alive, num_blocks))
        return [
            (endpoint, count)
            for bits, count in found
            if count
            for number in _numbers_of(bits)
            if (endpoint := by_bit[number]) is not None
        ]

    def _look_inside(
        self, path: PromptPath, edge: tuple[int, int, int], speculation: Speculation | None
    ) -> Iterator[tuple[int, int]]:
        """Yield the last held block of endpoints inside a span, each with the bits of those that end there.

        By halving: an endpoint that holds a later block than one that it lacks has a hole, which is seen to elsewhere.

        Args:
            path: The prompt.
            edge: The block where the span starts, the one where it ends, and who holds the former and lacks the latter.
            speculation: See `matched_tokens`.
        """
        find, ids, block_bytes = self._blocks.get, path.ids, path.block_bytes
        start, first_byte = path.ends[edge[0] // path.span_blocks], edge[0] * block_bytes
        todo = [edge]
        while todo:
            held, missing, bits = todo.pop()
            if missing - held == 1:
                yield bits, held
                continue
            middle = (held + missing) // 2
            digest = hash((start, ids[first_byte : middle * block_bytes]))
            block = find(digest)
            kept = 0 if block is None else bits & block.endpoints
            if speculation is not None:
                kept |= bits & speculation.endpoints(digest)
            if kept:
                todo.append((middle, missing, kept))
            if kept != bits:
                todo.append((held, middle, bits ^ kept))


def _numbers_of(bits: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _before_holes(endpoint: EndpointBlocks, path: PromptPath, num_blocks: int) -> int:
    """Return how many of the first `num_blocks` blocks an endpoint holds without a gap."""
    # `tuple` of a dictionary's values is one step for the interpreter, so a writer can't come in between.
    for hole in tuple(endpoint.holes.values()):
        block = hole.block
        if block.num_blocks <= num_blocks and path.digest_at(block.num_blocks) == block.digest:
            num_blocks = block.num_blocks - 1
    return num_blocks
