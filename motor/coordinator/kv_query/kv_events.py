"""vLLM's KV cache events: msgpack bytes to values.

Events are maps with a `type`; vLLM up to 0.11 sent them as arrays. Fields and types that we don't know are passed over.
"""

from typing import Any

import msgspec

BlockHash = int | bytes
"""Whatever the engine calls a block by; means something to this engine only."""


class BlockStored(msgspec.Struct, tag="BlockStored", gc=False):
    """Consecutive blocks became reusable.

    Attributes:
        block_hashes: One per block.
        parent_block_hash: The block before the first one; `None` at the prompt's start.
        token_ids: Of all blocks in order, `block_size` for each.
        block_size: Tokens a block.
        medium: Where the blocks are: `GPU`, `CPU`, ...; `None` is the engine's own memory.
        lora_name: The adapter.
        lora_id: Its number, the only thing that old engines tell of it.
        extra_keys: Per block what its hash covers beside ids: adapter, multimodal items, salt (in block 0 only).
        group_idx: The KV cache group; a hybrid model has several.
        kv_cache_spec_kind: The group's kind of attention.
        locality: `REMOTE` if the blocks are in another node's memory.
    """

    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None
    lora_id: int | None = None

    @property
    def lora(self) -> str | None:
        """The adapter's name; one that is only a number gets a name that no request can ask for."""
        if self.lora_name is None and self.lora_id is not None:
            return f"\0{self.lora_id}"
        return self.lora_name


class BlockRemoved(msgspec.Struct, tag="BlockRemoved", gc=False):
    """Blocks were evicted; attributes as in `BlockStored`."""

    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(msgspec.Struct, tag="AllBlocksCleared", gc=False):
    """The cache was emptied."""


KvEvent = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, gc=False):
    """What happened in one engine step.

    Attributes:
        timestamp_seconds: The engine's wall clock; never runs back within the life of an engine.
        events: In order.
        num_unknown: Events of types that we don't know.
    """

    timestamp_seconds: float
    events: list[KvEvent]
    num_unknown: int = 0


class _Payload(msgspec.Struct, array_like=True, gc=False):
    ts: float
    events: list[KvEvent]


class _RawPayload(msgspec.Struct, array_like=True):
    ts: float
    events: list[msgspec.Raw]


class _StoredArray(msgspec.Struct, tag="BlockStored", array_like=True):
    block_hashes: list[BlockHash]
    parent_block_hash: BlockHash | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None


class _RemovedArray(msgspec.Struct, tag="BlockRemoved", array_like=True):
    block_hashes: list[BlockHash]
    medium: str | None = None


class _ClearedArray(msgspec.Struct, tag="AllBlocksCleared", array_like=True):
    pass


_decode = msgspec.msgpack.Decoder(_Payload).decode
_decode_raw = msgspec.msgpack.Decoder(_RawPayload).decode
_decode_map = msgspec.msgpack.Decoder(KvEvent).decode
_decode_array = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray).decode


def decode_batch(payload: bytes | memoryview) -> EventBatch:
    """Return what an engine published.

    Raises:
        ValueError: It is no batch of events at all.
    """
    try:
        batch = _decode(payload)
    except msgspec.ValidationError:
        return _decode_tolerantly(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a batch of KV events: {error}") from error
    return EventBatch(batch.ts, batch.events)


def _decode_tolerantly(payload: bytes | memoryview) -> EventBatch:
    try:
        raw = _decode_raw(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"not a batch of KV events: {error}") from error
    events = [_decode_event(event) for event in raw.events]
    known = [event for event in events if event is not None]
    return EventBatch(raw.ts, known, len(events) - len(known))


def _decode_event(raw: msgspec.Raw) -> KvEvent | None:
    try:
        return _decode_map(raw)
    except msgspec.ValidationError:
        pass
    try:
        event = _decode_array(raw)
    except msgspec.ValidationError:
        return None
    if isinstance(event, _StoredArray):
        return BlockStored(
            event.block_hashes,
            event.parent_block_hash,
            event.token_ids,
            event.block_size,
            medium=event.medium,
            lora_name=event.lora_name,
            lora_id=event.lora_id,
        )
    if isinstance(event, _RemovedArray):
        return BlockRemoved(event.block_hashes, event.medium)
    return AllBlocksCleared()
