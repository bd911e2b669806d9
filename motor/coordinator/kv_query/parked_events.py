"""Blocks whose parent has not been told yet. Mutable: everything."""

from motor.coordinator.kv_query.kv_events import BlockHash, BlockStored


class ParkedEvents:
    """Keeps the events of one endpoint until their parents come; the oldest go when there is no room.

    Args:
        max_blocks: Blocks in all parked events.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = max_blocks
        self._by_parent: dict[BlockHash, list[BlockStored]] = {}
        self._removed: set[BlockHash] = set()
        self.num_blocks = 0
        self.num_dropped = 0

    def __bool__(self) -> bool:
        return bool(self._by_parent)

    def park(self, parent: BlockHash, event: BlockStored) -> None:
        """Keep an event until `parent` is stored."""
        self._removed.difference_update(event.block_hashes)
        self._by_parent.setdefault(parent, []).append(event)
        self.num_blocks += len(event.block_hashes)
        while self.num_blocks > self._max_blocks:
            oldest = next(iter(self._by_parent))
            num_blocks = sum(len(dropped.block_hashes) for dropped in self._by_parent.pop(oldest))
            self.num_blocks -= num_blocks
            self.num_dropped += num_blocks

    def note_removed(self, block_hash: BlockHash) -> None:
        """Note that a block, perhaps of a parked event, is gone."""
        if self._by_parent and len(self._removed) < self._max_blocks:
            self._removed.add(block_hash)

    def note_stored(self, event: BlockStored) -> None:
        """Note that an event was not parked: an earlier removal of its blocks is over."""
        if self._removed:
            self._removed.difference_update(event.block_hashes)

    def take_children(self, parent: BlockHash) -> list[BlockStored]:
        """Return the events that waited for a block, and forget them."""
        events = self._by_parent.pop(parent, [])
        self.num_blocks -= sum(len(event.block_hashes) for event in events)
        return events

    def take_removed(self, event: BlockStored) -> list[BlockHash]:
        """Return those blocks of an event that were removed while it was parked, and forget that."""
        removed = [block_hash for block_hash in event.block_hashes if block_hash in self._removed]
        self._removed.difference_update(removed)
        return removed

    def clear(self) -> None:
        """Forget all events."""
        self._by_parent.clear()
        self._removed.clear()
        self.num_blocks = 0
