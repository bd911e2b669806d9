"""The tests' oracle: an engine cache that is a set of prefixes, the events it tells, what of a prompt it would find."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from motor.coordinator.kv_query.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KvEvent

Scope = tuple[str | None, str | None]
"""LoRA and salt."""
Prefix = tuple[Scope, tuple[int, ...]]

BASE: Scope = (None, None)


@dataclass
class EngineCache:
    """The prefixes whose last block is held; hashes are this engine's own."""

    block_size: int
    seed: int = 0
    held: set[Prefix] = field(default_factory=set)

    def hash_of(self, prefix: Prefix) -> int:
        return hash((self.seed, prefix)) & (1 << 64) - 1

    def store(self, scope: Scope, ids: Sequence[int], first: int, last: int) -> BlockStored:
        """Hold the blocks `first..last` (exclusive) of a prompt."""
        size = self.block_size
        prefixes = [(scope, tuple(ids[: (number + 1) * size])) for number in range(first, last)]
        self.held.update(prefixes)
        lora, salt = scope
        keys = [
            [key for key in (lora, salt if number == 0 else None) if key is not None] or None
            for number in range(first, last)
        ]
        return BlockStored(
            [self.hash_of(prefix) for prefix in prefixes],
            None if first == 0 else self.hash_of((scope, tuple(ids[: first * size]))),
            list(ids[first * size : last * size]),
            size,
            medium="GPU",
            lora_name=lora,
            extra_keys=keys,
            group_idx=0,
        )

    def remove(self, prefix: Prefix) -> BlockRemoved:
        self.held.discard(prefix)
        return BlockRemoved([self.hash_of(prefix)], medium="GPU", group_idx=0)

    def clear(self) -> KvEvent:
        self.held.clear()
        return AllBlocksCleared()

    def matched_tokens(self, scope: Scope, ids: Sequence[int]) -> int:
        size = self.block_size
        num_blocks = 0
        while (num_blocks + 1) * size < len(ids) and (scope, tuple(ids[: (num_blocks + 1) * size])) in self.held:
            num_blocks += 1
        return num_blocks * size
