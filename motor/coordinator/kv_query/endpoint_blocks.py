"""What one endpoint holds: its own block hashes, as a tree. Mutable: everything but `key`, `model` and `bit`.

Nothing here refers from parent to child or from block to block, so that letting go of a long prompt can't recurse, and
nothing is tracked by the garbage collector, whose passes over a million blocks would stall the event loop.
"""

import struct
from typing import Any

import msgspec

from motor.coordinator.kv_query.kv_events import BlockHash, BlockStored
from motor.coordinator.kv_query.parked_events import ParkedEvents
from motor.coordinator.kv_query.port import CacheScope, EndpointKey
from motor.coordinator.kv_query.prompt_path import ID_BYTES, num_span_blocks, pack_ids, prefix_digest, root_digest

_encode = msgspec.msgpack.Encoder().encode


class Block(msgspec.Struct, gc=False):
    """A block in the context of all blocks before it, whoever holds it.

    Attributes:
        digest: Names the prefix that ends with it.
        num_blocks: Blocks in that prefix.
        block_size: Tokens a block.
        span_start: Name of the prefix before the block's span.
        span_ids: Packed ids from there on, at least to the block's end; shared with its neighbours.
        endpoints: Bits of the endpoints that hold it.
    """

    digest: int
    num_blocks: int
    block_size: int
    span_start: int
    span_ids: bytearray
    endpoints: int = 0


class Held(msgspec.Struct, gc=False):
    """One endpoint's hold of a block; `num_children` counts its direct extensions there."""

    block: Block
    parent: BlockHash | None
    num_children: int = 0


class EndpointBlocks:
    """The blocks of one endpoint.

    A block that was removed while extensions of it are left stays as a hole: what lies behind is in the cache, but no
    prompt can reach it. A hole ends when the block is stored again or its last extension goes.

    Args:
        key: Whose they are.
        model: What the endpoint serves.
        bit: A power of two that stands for it in `Block.endpoints`.
        blocks: All endpoints' blocks by digest; shared, changed here.
        max_parked_blocks: Blocks that may wait for their parents.
    """

    def __init__(
        self, key: EndpointKey, model: str, bit: int, blocks: dict[int, Block], max_parked_blocks: int
    ) -> None:
        self.key = key
        self.model = model
        self.bit = bit
        self.holes: dict[BlockHash, Held] = {}
        self.parked = ParkedEvents(max_parked_blocks)
        self.group: int | None = None
        self.num_malformed = 0
        self.num_contradictions = 0
        self._blocks = blocks
        self._held: dict[BlockHash, Held] = {}
        self._leaves: dict[BlockHash, None] = {}

    @property
    def num_held(self) -> int:
        """Blocks that it holds."""
        return len(self._held)

    @property
    def num_kept(self) -> int:
        """Blocks that take memory: held, missing, or parked."""
        return len(self._held) + len(self.holes) + self.parked.num_blocks

    def store(self, event: BlockStored) -> None:
        """Take in stored blocks, and those that waited for them."""
        self.parked.note_stored(event)
        todo = [(event, False)]
        while todo:
            event, was_parked = todo.pop()
            parent = event.parent_block_hash
            if parent is not None and self._find(parent) is None:
                self.parked.park(parent, event)
            elif self._store_chain(event) and self.parked:
                for block_hash in event.block_hashes:
                    todo += [(child, True) for child in self.parked.take_children(block_hash)]
            if was_parked:
                self.remove(self.parked.take_removed(event))

    def remove(self, block_hashes: list[BlockHash]) -> None:
        """Take in removed blocks; unknown ones are passed over."""
        for block_hash in block_hashes:
            held = self._held.get(block_hash)
            if held is None:
                self.parked.note_removed(block_hash)
                continue
            if held.num_children:
                self.holes[block_hash] = held  # before the bit goes: a reader must not see the rest without the hole
            del self._held[block_hash]
            self._clear_bit(held.block)
            if not held.num_children:
                self._leaves.pop(block_hash, None)
                self._unlink_from(held.parent)

    def clear(self) -> None:
        """Forget all blocks."""
        for held in self._held.values():
            self._clear_bit(held.block)
        self._held.clear()
        self._leaves.clear()
        self.holes.clear()
        self.parked.clear()

    def evict(self, num_blocks: int) -> int:
        """Forget blocks that nothing extends, least recently told ones first, each with the chain that led to it.

        Returns:
            How many were forgotten.
        """
        num_before = num_left = len(self._held)
        while self._leaves and num_before - num_left < num_blocks:
            block_hash: BlockHash | None = next(iter(self._leaves))
            while block_hash is not None and num_before - num_left < num_blocks:
                held = self._held.get(block_hash)
                if held is None or held.num_children:
                    break
                self.remove([block_hash])
                block_hash = held.parent
                num_left = len(self._held)
        return num_before - num_left

    def _store_chain(self, event: BlockStored) -> bool:
        """Hold the blocks of an event whose parent is known; return whether it makes sense."""
        size, hashes = event.block_size, event.block_hashes
        above = self._find(event.parent_block_hash)
        fits_parent = above is None or above.block.block_size == size
        if not hashes or len(event.token_ids) != len(hashes) * size or not fits_parent:
            self.num_malformed += 1
            return False
        try:
            new_ids = pack_ids(event.token_ids)
        except struct.error:
            self.num_malformed += 1
            return False
        span_blocks, stride = num_span_blocks(size), ID_BYTES * size
        depth = 0 if above is None else above.block.num_blocks
        num_known = depth % span_blocks
        if above is None:
            start, room = self._root(event), bytearray()
        elif num_known:
            start, room = above.block.span_start, above.block.span_ids
        else:
            start, room = above.block.digest, bytearray()
        ids = bytes(room[: num_known * stride]) + new_ids
        parent, index = event.parent_block_hash, 0
        for begin in range(0, len(ids), span_blocks * stride):
            span = ids[begin : begin + span_blocks * stride]
            if len(room) != num_known * stride:  # another continuation of the span has been written there
                room = bytearray(span[: num_known * stride])
            for end in range((num_known + 1) * stride, len(span) + 1, stride):
                if event.extra_keys is not None and (opaque := _opaque_keys(event, index)):
                    start = prefix_digest(start, _encode(opaque))
                digest = hash((start, span[:end]))
                depth += 1
                block = self._blocks.get(digest)
                if block is None:
                    if len(room) < len(span):
                        room += span[len(room) :]
                    block = self._blocks[digest] = Block(digest, depth, size, start, room)
                above = self._hold(hashes[index], block, parent, above)
                if above is None:
                    return False
                parent = hashes[index]
                index += 1
            start, num_known, room = digest, 0, bytearray()
        self._touch(hashes[-1])
        return True

    def _hold(self, block_hash: BlockHash, block: Block, parent: BlockHash | None, above: Held | None) -> Held | None:
        """Hold one block; return nothing if the engine calls two blocks alike, and so can't be trusted."""
        held = self._held.get(block_hash)
        if held is None:
            held = self.holes.get(block_hash) if self.holes else None
            if held is None:
                held = self._held[block_hash] = Held(block, parent)
                block.endpoints |= self.bit
                if above is not None:
                    if not above.num_children and parent in self._leaves:
                        del self._leaves[parent]
                    above.num_children += 1
                return held
            if held.block.digest == block.digest:
                held.block = block
                self._held[block_hash] = held
                block.endpoints |= self.bit
                del self.holes[block_hash]
                return held
        if held.block.digest == block.digest:
            return held
        if not block.endpoints:
            del self._blocks[block.digest]
        self.num_contradictions += 1
        self.clear()
        return None

    def _touch(self, block_hash: BlockHash) -> None:
        if not self._held[block_hash].num_children:
            self._leaves.pop(block_hash, None)
            self._leaves[block_hash] = None

    def _find(self, block_hash: BlockHash | None) -> Held | None:
        if block_hash is None:
            return None
        return self._held.get(block_hash) or self.holes.get(block_hash)

    def _unlink_from(self, parent: BlockHash | None) -> None:
        while parent is not None:
            held = self._held.get(parent)
            if held is not None:
                held.num_children -= 1
                if not held.num_children:
                    self._leaves[parent] = None
                return
            held = self.holes[parent]
            held.num_children -= 1
            if held.num_children:
                return
            del self.holes[parent]
            parent = held.parent

    def _clear_bit(self, block: Block) -> None:
        block.endpoints &= ~self.bit
        if not block.endpoints:
            self._blocks.pop(block.digest, None)

    def _root(self, event: BlockStored) -> int:
        keys = _keys_after_lora(event, 0)
        salt = next((key for key in keys if isinstance(key, str)), None)
        return root_digest(CacheScope(self.model, event.lora, salt), event.block_size)


def _keys_after_lora(event: BlockStored, index: int) -> list[Any]:
    keys = event.extra_keys[index] if event.extra_keys is not None and index < len(event.extra_keys) else None
    if not keys:
        return []
    return keys[1:] if event.lora_name is not None and keys[0] == event.lora_name else keys


def _opaque_keys(event: BlockStored, index: int) -> list[Any]:
    """Return what a block depends on beside ids, adapter and salt: multimodal items, embeddings. No text matches it."""
    keys = _keys_after_lora(event, index)
    if index == 0 and event.parent_block_hash is None:
        salts = [key for key in keys if isinstance(key, str)][:1]
        return [key for key in keys if key not in salts]
    return keys
