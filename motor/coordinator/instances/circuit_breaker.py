"""Keeps requests away from instances that fail: closed, open, half-open with one trial at a time. Pure; time passed in.

Fed by engine faults and answers only; Render, Derender and clients can't open it.
"""

from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    """What an instance may get."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True)
class BreakerRules:
    """When a breaker opens, and for how long.

    Attributes:
        num_faults: Faults in a row that open it.
        open_seconds: The first time it is open; doubled each time a trial fails.
        max_open_seconds: The longest time.
    """

    num_faults: int = 3
    open_seconds: float = 2.0
    max_open_seconds: float = 60.0


class CircuitBreaker:
    """One instance's breaker; mutable: `_num_faults`, `_opened_at`, `_num_openings`, `_has_trial`."""

    def __init__(self, rules: BreakerRules) -> None:
        self._rules = rules
        self._num_faults = 0
        self._opened_at: float | None = None
        self._num_openings = 0
        self._has_trial = False

    def state(self, now: float) -> BreakerState:
        """Return the state at a time in seconds."""
        if self._opened_at is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if now - self._opened_at >= self._seconds_open() else BreakerState.OPEN

    def allows(self, now: float) -> bool:
        """Whether a request may be sent now."""
        state = self.state(now)
        return state is BreakerState.CLOSED or (state is BreakerState.HALF_OPEN and not self._has_trial)

    def begin(self, now: float) -> None:
        """Note that a request is being sent; half-open, it is the trial."""
        if self.state(now) is BreakerState.HALF_OPEN:
            self._has_trial = True

    def succeeded(self) -> None:
        """The instance did its work."""
        self._num_faults = 0
        self._opened_at = None
        self._num_openings = 0
        self._has_trial = False

    def failed(self, now: float) -> None:
        """The instance is to blame for a failure."""
        self._num_faults += 1
        if self._has_trial or self._opened_at is not None or self._num_faults >= self._rules.num_faults:
            if self._opened_at is None or self._has_trial:
                self._num_openings += 1
            self._opened_at = now
            self._has_trial = False

    def abandoned(self) -> None:
        """A request ended without saying anything of the instance (the client left, say): a trial may be made anew."""
        self._has_trial = False

    def _seconds_open(self) -> float:
        doubled = self._rules.open_seconds * 2.0 ** max(0, self._num_openings - 1)
        return min(doubled, self._rules.max_open_seconds)
