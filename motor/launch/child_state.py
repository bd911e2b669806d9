"""The life of a supervised child process, as a table: no I/O and no clock, time comes as an argument."""

from dataclasses import dataclass, replace
from enum import StrEnum


class ChildState(StrEnum):
    """Where a child stands."""

    WAITING = "waiting"
    STARTING = "starting"
    READY = "ready"
    EXITED = "exited"
    RESTARTING = "restarting"
    STOPPING = "stopping"
    STOPPED = "stopped"


class ChildEvent(StrEnum):
    """What happens to a child."""

    LAUNCH = "launch"
    ANSWER = "answer"
    EXIT = "exit"
    RETRY = "retry"
    STOP = "stop"


TRANSITIONS: dict[tuple[ChildState, ChildEvent], ChildState] = {
    (ChildState.WAITING, ChildEvent.LAUNCH): ChildState.STARTING,
    (ChildState.WAITING, ChildEvent.STOP): ChildState.STOPPED,
    (ChildState.STARTING, ChildEvent.ANSWER): ChildState.READY,
    (ChildState.STARTING, ChildEvent.EXIT): ChildState.EXITED,
    (ChildState.STARTING, ChildEvent.STOP): ChildState.STOPPING,
    (ChildState.READY, ChildEvent.EXIT): ChildState.EXITED,
    (ChildState.READY, ChildEvent.STOP): ChildState.STOPPING,
    (ChildState.EXITED, ChildEvent.RETRY): ChildState.RESTARTING,
    (ChildState.RESTARTING, ChildEvent.LAUNCH): ChildState.STARTING,
    (ChildState.RESTARTING, ChildEvent.STOP): ChildState.STOPPED,
    (ChildState.STOPPING, ChildEvent.EXIT): ChildState.STOPPED,
}
"""Every step that exists. `EXITED` without `RETRY` and `STOPPED` are ends."""

CALM_SECONDS = 60.0
"""A child that was ready for so long has its earlier failures forgotten."""


class IllegalTransitionError(Exception):
    """The event can't happen in this state; the record is unchanged."""


@dataclass(frozen=True, slots=True)
class ChildRecord:
    """What is known of a child at one moment.

    Attributes:
        since: When the state was entered, in the caller's monotonic seconds.
        pid: The running process, `None` when there is none.
        exit_code: Of the last process that ended; negative is a signal's number.
        num_failures: Unwanted exits in a row.
        was_ready: Whether any process of this child ever answered.
    """

    name: str
    url: str
    since: float
    state: ChildState = ChildState.WAITING
    pid: int | None = None
    exit_code: int | None = None
    num_failures: int = 0
    was_ready: bool = False

    def after(self, event: ChildEvent, now: float, exit_code: int | None = None) -> "ChildRecord":
        """Return the record after `event`.

        Args:
            now: Monotonic seconds.
            exit_code: Of the ended process, with `EXIT`; `None` when there was no process.

        Raises:
            IllegalTransitionError: The table has no such step.
        """
        state = TRANSITIONS.get((self.state, event))
        if state is None:
            raise IllegalTransitionError(f"{self.name}: {event} while {self.state}")
        moved = replace(self, state=state, since=now)
        if event is ChildEvent.ANSWER:
            return replace(moved, was_ready=True)
        if event is ChildEvent.EXIT:
            return replace(moved, pid=None, exit_code=exit_code, num_failures=self._failures_after_exit(now))
        return moved

    def _failures_after_exit(self, now: float) -> int:
        if self.state is ChildState.STOPPING:
            return self.num_failures
        was_calm = self.state is ChildState.READY and now - self.since >= CALM_SECONDS
        return 1 if was_calm else self.num_failures + 1


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Whether and when an ended child starts again.

    Attributes:
        max_failures: After so many unwanted exits in a row the child stays down; 0 never restarts.
        first_delay_seconds: Pause before the first restart; doubled with each further one.
        max_delay_seconds: Bound on the pause.
    """

    max_failures: int = 5
    first_delay_seconds: float = 1.0
    max_delay_seconds: float = 30.0

    def delay_seconds(self, record: ChildRecord) -> float | None:
        """Return the pause before the restart, or `None` for a child that stays down.

        A child that never answered stays down: the cause is in its command line, and repeating it would only hide that.
        """
        if not record.was_ready or record.num_failures > self.max_failures:
            return None
        return min(self.first_delay_seconds * 2.0 ** (record.num_failures - 1), self.max_delay_seconds)


NO_RESTART = RestartPolicy(max_failures=0)
