"""Where the last requests' time went, for operators who ask about one of them."""

from collections import OrderedDict

from motor.coordinator.telemetry.stages import StageClock


class RecentRequests:
    """Stage times of the last `capacity` requests, by request id; mutable: `_times`."""

    def __init__(self, capacity: int = 1024) -> None:
        self._capacity = capacity
        self._times: OrderedDict[str, StageClock] = OrderedDict()

    def remember(self, request_id: str, clock: StageClock) -> None:
        """Keep a request's clock, forgetting the oldest one."""
        self._times[request_id] = clock
        self._times.move_to_end(request_id)
        if len(self._times) > self._capacity:
            self._times.popitem(last=False)

    def times_of(self, request_id: str) -> dict[str, float] | None:
        """Return milliseconds per stage, or `None` for a request that is unknown or forgotten."""
        clock = self._times.get(request_id)
        return None if clock is None else clock.as_milliseconds()
