"""Where one request's time goes, stage by stage, and which instances it is sent to (RFC: 可观测性)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

STAGES = ("render", "flow_control", "kv_query", "schedule", "first_chunk", "derender", "total")


class StageClock:
    """Adds up the seconds of each stage; mutable: `_seconds`, `_instances`.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._instances: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Book the time of the block under `name`; a stage entered again adds up."""
        started = self._clock()
        try:
            yield
        finally:
            self.add(name, self._clock() - started)

    def now(self) -> float:
        """Return the clock's seconds."""
        return self._clock()

    def add(self, name: str, seconds: float) -> None:
        """Book seconds that were measured elsewhere."""
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def note_instance(self, instance_id: str) -> None:
        """Note that an instance was chosen."""
        self._instances.append(instance_id)

    @property
    def instances(self) -> tuple[str, ...]:
        """Ids of the instances that were chosen so far, in that order, each once."""
        return tuple(dict.fromkeys(self._instances))

    def seconds(self) -> dict[str, float]:
        """Return seconds per stage."""
        return dict(self._seconds)

    def as_milliseconds(self) -> dict[str, float]:
        """Return milliseconds per stage, rounded to hundredths."""
        return {name: round(seconds * 1000, 2) for name, seconds in self._seconds.items()}
