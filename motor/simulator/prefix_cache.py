"""A prefix cache of full blocks with a capacity; the least recently used block goes first."""

from collections import OrderedDict
from collections.abc import Sequence


class PrefixCache:
    """Which prefixes' KV blocks an engine still has; the order of blocks changes with every prompt.

    Args:
        capacity: Blocks that it holds; 0 turns it off.
        block_size: Tokens a block.
    """

    def __init__(self, capacity: int, block_size: int) -> None:
        self._capacity = capacity
        self._block_size = block_size
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
        num_hits = 0
        for block in blocks[: max(0, len(prompt) - 1) // self._block_size]:
            if block not in self._blocks:
                break
            num_hits += 1
        # The deepest block first, so that a prefix outlives what extends it.
        for block in reversed(blocks):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return num_hits * self._block_size

    def clear(self) -> None:
        """Forget everything."""
        self._blocks.clear()

    def _chain(self, prompt: Sequence[int], salt: str | None) -> list[int]:
        chain: list[int] = []
        parent = hash(salt)
        for start in range(0, len(prompt) - self._block_size + 1, self._block_size):
            parent = hash((parent, tuple(prompt[start : start + self._block_size])))
            chain.append(parent)
        return chain
