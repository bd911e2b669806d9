"""The embedded KV conductor by itself: time of a query, events per second. `python -m bench.kv_query` prints both."""

import json
import random
import time
from collections.abc import Iterator
from dataclasses import asdict

import msgspec

from bench.figures import Figure
from motor.coordinator.kv_query.event_sequence import Apply, EventSequence
from motor.coordinator.kv_query.kv_events import BlockStored, decode_batch
from motor.coordinator.kv_query.port import CacheScope, EndpointKey
from motor.coordinator.kv_query.prefix_index import PrefixIndex

COMMAND = "python -m bench.kv_query"
NUM_ENDPOINTS = 64
NUM_BLOCKS = 1_000_000
NUM_PROMPT_TOKENS = 100_000
BLOCK_SIZE = 16
NUM_QUERIES = 500
SCOPE = CacheScope("model")
VOCABULARY = 150_000
STEP_TOKENS = 8192
"""Prompt tokens that an engine computes in a step: what one event tells."""
_HASH_BITS = (1 << 64) - 1


def filled_index(prompt: list[int], block_size: int = BLOCK_SIZE) -> PrefixIndex:
    """Return an index of `NUM_BLOCKS` blocks: each endpoint holds a part of `prompt`, the rest is its own.

    Of the endpoints one in eight holds all of it, the others end at different blocks.
    """
    source = random.Random(1)  # noqa: S311 - a repeatable sequence is what it is for
    index = PrefixIndex(max_blocks=2 * NUM_BLOCKS)
    num_prompt_blocks = len(prompt) // block_size
    for number in range(NUM_ENDPOINTS):
        key = EndpointKey(f"engine-{number}")
        index.add_endpoint(key, SCOPE.model)
        share = num_prompt_blocks if number % 8 == 0 else num_prompt_blocks * number // NUM_ENDPOINTS
        for event in _chain(prompt[: share * block_size], block_size, number):
            index.apply(key, event)
        left = NUM_BLOCKS // NUM_ENDPOINTS - share
        own = [source.randrange(VOCABULARY) for _ in range(left * block_size)]
        for event in _chain(own, block_size, number + NUM_ENDPOINTS):
            index.apply(key, event)
    return index


def _chain(ids: list[int], block_size: int, seed: int) -> Iterator[BlockStored]:
    """Yield the events that tell of a prompt, a step each."""
    parent = None
    step = STEP_TOKENS // block_size * block_size
    for begin in range(0, len(ids), step):
        part = ids[begin : begin + step]
        hashes: list[int | bytes] = [
            hash((seed, begin + offset)) & _HASH_BITS for offset in range(0, len(part), block_size)
        ]
        yield BlockStored(hashes, parent, part, block_size, medium="GPU")
        parent = hashes[-1]


def query_figure(index: PrefixIndex, prompt: list[int], block_size: int = BLOCK_SIZE) -> Figure:
    """Measure queries of `prompt`; the thread's own time, so that other processes don't count."""
    ids = tuple(prompt)
    expected = (len(ids) - 1) // block_size * block_size
    times = []
    for _ in range(NUM_QUERIES):
        begun = time.thread_time()
        matches = index.matched_tokens(ids, SCOPE)
        times.append((time.thread_time() - begun) * 1000)
        assert max(matches.values()) == expected
    times.sort()
    percentiles = [times[int(len(times) * share)] for share in (0.5, 0.9, 0.99)]
    note = f"{NUM_PROMPT_TOKENS} tokens, {NUM_ENDPOINTS} endpoints, {NUM_BLOCKS} blocks of {block_size}; p50, p90, p99"
    return Figure(percentiles[-1], "ms", [round(value, 3) for value in percentiles], COMMAND, note)


def ingest_figure(num_rounds: int = 5) -> Figure:
    """Measure frames of full caches, half of them stores, half removals, into an index that stays full."""
    samples = [_ingest_once(number) for number in range(num_rounds)]
    note = "block events a second of the feed's thread: msgpack, order, index; a store and a removal count as one each"
    return Figure(sorted(samples)[len(samples) // 2], "1/s", [round(sample) for sample in samples], COMMAND, note)


def _ingest_once(seed: int) -> float:
    source = random.Random(seed)  # noqa: S311 - a repeatable sequence is what it is for
    index = PrefixIndex()
    key = EndpointKey("engine")
    index.add_endpoint(key, SCOPE.model)
    sequence = EventSequence(has_replay=False)
    frames = []
    num_events = 0
    for number in range(20):
        ids = [source.randrange(VOCABULARY) for _ in range(4 * STEP_TOKENS)]
        chain = list(_chain(ids, BLOCK_SIZE, number))
        for event in chain:
            frames.append(_frame(event))
            num_events += len(event.block_hashes)
        for event in reversed(chain):
            gone = [
                {"type": "BlockRemoved", "block_hashes": [one], "medium": "GPU", "group_idx": 0}
                for one in reversed(event.block_hashes)
            ]
            frames.append(msgspec.msgpack.encode([0.0, gone, 0]))
            num_events += len(gone)
    begun = time.thread_time()
    for number, frame in enumerate(frames):
        for step in sequence.received(number, decode_batch(frame), 0.0):
            assert isinstance(step, Apply)
            for change in step.batch.events:
                index.apply(key, change)
    seconds = time.thread_time() - begun
    assert index.statistics().num_blocks == 0
    return num_events / seconds


def _frame(event: BlockStored) -> bytes:
    """Encode as vLLM does."""
    fields = {
        "type": "BlockStored",
        "block_hashes": event.block_hashes,
        "parent_block_hash": event.parent_block_hash,
        "token_ids": event.token_ids,
        "block_size": event.block_size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None] * len(event.block_hashes),
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
    }
    return msgspec.msgpack.encode([0.0, [fields], 0])


def measure_kv_query() -> dict[str, dict[str, object]]:
    """Return both figures."""
    source = random.Random(0)  # noqa: S311 - a repeatable sequence is what it is for
    prompt = [source.randrange(VOCABULARY) for _ in range(NUM_PROMPT_TOKENS)]
    index = filled_index(prompt)
    figures = {"kv_query_100k_p99_ms": query_figure(index, prompt), "kv_events_per_s": ingest_figure()}
    return {name: asdict(figure) for name, figure in figures.items()}


if __name__ == "__main__":
    print(json.dumps(measure_kv_query(), indent=1))
