"""Order in one endpoint's event stream: what is applied, what was lost, whether the engine is still the same one.

Decides only; the feed does what is returned. Mutable: everything.
"""

from collections import deque
from dataclasses import dataclass

from motor.coordinator.kv_query.kv_events import EventBatch

MAX_WAITING_BATCHES = 10_000
"""Live batches that may wait for the end of a replay; as many as vLLM keeps for it."""


@dataclass(frozen=True, slots=True)
class Apply:
    """Take the batch in."""

    batch: EventBatch


@dataclass(frozen=True, slots=True)
class Clear:
    """Forget the endpoint's blocks, because of `reason`."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskReplay:
    """Ask for all batches from a sequence number on; an earlier question is void."""

    first_sequence: int


Step = Apply | Clear | AskReplay


@dataclass(frozen=True, slots=True)
class _Numbered:
    sequence: int
    batch: EventBatch


class EventSequence:
    """One endpoint's stream.

    A replay begins with the last batch that was applied: if it is not the same one as then, the engine has been
    restarted, and all that was known is void. A batch is told from its namesake by its timestamp.

    Args:
        has_replay: Whether past batches can be asked for. If not, any doubt clears the endpoint's blocks.
        replay_seconds: How long a replay may stand still.
    """

    def __init__(self, *, has_replay: bool, replay_seconds: float = 2.0) -> None:
        self._has_replay = has_replay
        self._replay_seconds = replay_seconds
        self._last: _Numbered | None = None
        self._waiting: deque[_Numbered] = deque()
        self._asked_from: int | None = None
        self._must_verify = False
        self._is_torn = False
        self._unclosed_gap: int | None = None
        self._progress_seconds = 0.0
        self.num_gaps = 0
        self.num_repeated = 0
        self.num_failed_replays = 0

    @property
    def is_replaying(self) -> bool:
        """Whether a replay is awaited."""
        return self._asked_from is not None

    def connected(self, now_seconds: float) -> list[Step]:
        """The connection is there, perhaps again, perhaps to another engine."""
        self._waiting.clear()  # another engine's, perhaps; a replay has those of this one
        return self._resync(now_seconds, "reconnected")

    def received(self, sequence: int, batch: EventBatch, now_seconds: float) -> list[Step]:
        """A batch came over the live stream."""
        if self.is_replaying:
            self._waiting.append(_Numbered(sequence, batch))
            return self._give_up("too many events during a replay") if len(self._waiting) > MAX_WAITING_BATCHES else []
        last = self._last
        if last is None or sequence == last.sequence + 1:
            return self._take(sequence, batch)
        if sequence <= last.sequence and batch.timestamp_seconds <= last.batch.timestamp_seconds:
            self.num_repeated += 1
            return []
        if self._unclosed_gap == last.sequence:
            return [Clear("events lost for good"), *self._take(sequence, batch)]
        self.num_gaps += 1
        self._unclosed_gap = last.sequence
        self._waiting.append(_Numbered(sequence, batch))
        return self._resync(now_seconds, "events lost")

    def replayed(self, sequence: int, batch: EventBatch, now_seconds: float) -> list[Step]:
        """A batch came in answer to the latest `AskReplay`."""
        if not self.is_replaying or self._is_torn:
            return []
        self._progress_seconds = now_seconds
        last = self._last
        if self._must_verify and last is not None:
            self._must_verify = False
            if sequence == last.sequence and batch.timestamp_seconds == last.batch.timestamp_seconds:
                return []
            # Restarted, or it no longer has what we would need: begin anew with what there is.
            self._last = None
            if sequence == last.sequence:
                return [Clear("engine restarted"), *self._ask(0, now_seconds)]
            return [Clear("replay too short"), *self._take(sequence, batch)]
        if last is None or sequence == last.sequence + 1:
            return self._take(sequence, batch)
        self._is_torn = sequence > last.sequence + 1
        return []

    def replay_ended(self, now_seconds: float) -> list[Step]:
        """The answer to the latest `AskReplay` is complete."""
        if not self.is_replaying:
            return []
        if self._must_verify:
            self._last = None
            return [Clear("engine restarted"), *self._ask(0, now_seconds)]
        if self._is_torn and self._last is not None and self._last.sequence != self._asked_from:
            return self._ask(self._last.sequence, now_seconds)
        return [*(self._give_up("replay torn") if self._is_torn else []), *self._go_live(now_seconds)]

    def tick(self, now_seconds: float) -> list[Step]:
        """Time has passed."""
        if self.is_replaying and now_seconds - self._progress_seconds > self._replay_seconds:
            return [*self._give_up("no replay"), *self._go_live(now_seconds)]
        return []

    def _resync(self, now_seconds: float, reason: str) -> list[Step]:
        if self._has_replay:
            return self._ask(0 if self._last is None else self._last.sequence, now_seconds)
        known, self._last = self._last, None
        return [*([] if known is None else [Clear(reason)]), *self._go_live(now_seconds)]

    def _ask(self, first_sequence: int, now_seconds: float) -> list[Step]:
        self._asked_from = first_sequence
        self._must_verify = self._last is not None
        self._is_torn = False
        self._progress_seconds = now_seconds
        return [AskReplay(first_sequence)]

    def _give_up(self, reason: str) -> list[Step]:
        """Do without a replay: what is known may be wrong, what waits is all that is left."""
        self.num_failed_replays += 1
        self._last = None
        self._asked_from = None
        if len(self._waiting) > MAX_WAITING_BATCHES:
            self._waiting.clear()
        return [Clear(reason)]

    def _go_live(self, now_seconds: float) -> list[Step]:
        """Take in what came meanwhile; another gap in there starts all over."""
        self._asked_from = None
        steps: list[Step] = []
        waiting, self._waiting = self._waiting, deque()
        for one in waiting:
            steps += self.received(one.sequence, one.batch, now_seconds)
        return steps

    def _take(self, sequence: int, batch: EventBatch) -> list[Step]:
        # Events are applied once and need not be kept; number and time tell the batch.
        self._unclosed_gap = None
        self._last = _Numbered(sequence, EventBatch(batch.timestamp_seconds, []))
        return [Apply(batch)]
