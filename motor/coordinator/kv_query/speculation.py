"""Prompts just routed: their endpoints will hold them before any event can say so. Mutable: both generations."""

from motor.coordinator.kv_query.prompt_path import PromptPath

NUM_DETAILED_SPANS = 8
"""Spans at a prompt's start that are noted block by block; later ones as a whole, to keep routing cheap."""


class Speculation:
    """Remembers prefixes for at most `ttl_seconds` and at least half of that.

    Two generations take turns, so that forgetting costs nothing.

    Args:
        ttl_seconds: Longer than a prefill takes, short enough that a prompt that was never computed does little harm.
        max_prefixes: Of one generation; more start the next one early.
    """

    def __init__(self, ttl_seconds: float, max_prefixes: int = 100_000) -> None:
        self._half_life_seconds = ttl_seconds / 2
        self._max_prefixes = max_prefixes
        self._young: dict[int, int] = {}
        self._old: dict[int, int] = {}
        self._next_turn_seconds = float("-inf")

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def add(self, path: PromptPath, endpoint_bit: int, now_seconds: float) -> None:
        """Note that an endpoint (`endpoint_bit` is a power of two) is about to hold a prompt."""
        self.expire(now_seconds)
        digests = list(path)
        num_detailed = min(path.num_blocks, NUM_DETAILED_SPANS * path.span_blocks)
        digests += [path.digest_at(num_blocks) for num_blocks in range(1, num_detailed)]
        begin_of_last = path.num_blocks // path.span_blocks * path.span_blocks
        digests += [path.digest_at(num_blocks) for num_blocks in range(begin_of_last + 1, path.num_blocks)]
        young = self._young
        for digest in digests:
            young[digest] = young.get(digest, 0) | endpoint_bit
        if len(young) > self._max_prefixes:
            self._turn(now_seconds)

    def expire(self, now_seconds: float) -> None:
        """Forget what is too old."""
        if now_seconds >= self._next_turn_seconds + self._half_life_seconds:
            self._young, self._old = {}, {}
        if now_seconds >= self._next_turn_seconds:
            self._turn(now_seconds)

    def endpoints(self, digest: int) -> int:
        """Return the bits of the endpoints that are about to hold a prefix."""
        return self._young.get(digest, 0) | self._old.get(digest, 0)

    def forget(self, endpoint_bit: int) -> None:
        """Forget an endpoint."""
        for generation in (self._young, self._old):
            for digest in [digest for digest, bits in generation.items() if bits & endpoint_bit]:
                generation[digest] &= ~endpoint_bit

    def _turn(self, now_seconds: float) -> None:
        self._young, self._old = {}, self._young
        self._next_turn_seconds = now_seconds + self._half_life_seconds
