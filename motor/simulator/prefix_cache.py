"""A prefix cache of full blocks with a capacity; the least recently used block goes first."""

from collections import OrderedDict
from collections.abc import Sequence

from motor.simulator.kv_event_publisher import KvEventPublisher

_HASH_BITS = (1 << 64) - 1


class PrefixCache:
    """Which prefixes' KV blocks an engine still has; the order of blocks changes with every prompt.

    Args:
        capacity: Blocks that it holds; 0 turns it off.
        block_size: Tokens a block.
        events: Where changes are published, if anywhere.
    """

    def __init__(self, capacity: int, block_size: int, events: KvEventPublisher | None = None) -> None:
        self._capacity = capacity
        self._block_size = block_size
        self._events = events
        self._blocks: OrderedDict[int, None] = OrderedDict()

    @property
    def num_blocks(self) -> int:
        """Blocks in the cache."""
        return len(self._blocks)

    @property
    def usage(self) -> float:
        """The used part of the capacity, from 0 to 1."""
        return len(self._blocks) / self._capacity if self._capacity else 0.0

    def take(self, prompt: Sequence[int], salt: str | None = None) -> int:
        """Count the tokens of a prompt that are cached, then cache its full blocks.

        As in vLLM the last token is always computed, and a salt separates prompts.

        Returns:
            The number of cached tokens, a multiple of the block size.
        """
        if not self._capacity:
            return 0
        blocks = self._chain(prompt, salt)
        num_held = next((number for number, block in enumerate(blocks) if block not in self._blocks), len(blocks))
        # The deepest block first, so that a prefix outlives what extends it.
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        removed = [self._blocks.popitem(last=False)[0] for _ in range(len(self._blocks) - self._capacity)]
        self._publish(prompt, salt, blocks, num_held, removed)
        return min(num_held, max(0, len(prompt) - 1) // self._block_size) * self._block_size

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    def _publish(
        self, prompt: Sequence[int], salt: str | None, blocks: list[int], num_held: int, removed: list[int]
    ) -> None:
        if self._events is None or (num_held == len(blocks) and not removed):
            return
        if num_held < len(blocks):
            parent = blocks[num_held - 1] if num_held else None
            ids = prompt[num_held * self._block_size : len(blocks) * self._block_size]
            self._events.stored(parent, blocks[num_held:], ids, self._block_size, salt=salt)
        self._events.removed(removed)
        self._events.publish()

    def _chain(self, prompt: Sequence[int], salt: str | None) -> list[int]:
        chain: list[int] = []
        parent = hash(salt)
        for start in range(0, len(prompt) - self._block_size + 1, self._block_size):
            parent = hash((parent, tuple(prompt[start : start + self._block_size]))) & _HASH_BITS
            chain.append(parent)
        return chain
