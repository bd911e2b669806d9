"""The circuit breakers of all instances. Mutable: one breaker per instance that has been used."""

from collections.abc import Callable

from motor.coordinator.instances.circuit_breaker import BreakerRules, BreakerState, CircuitBreaker


class BreakerBoard:
    """Finds an instance's breaker and tells it the time.

    Args:
        rules: For every breaker.
        clock: Monotonic seconds.
    """

    def __init__(self, rules: BreakerRules, clock: Callable[[], float]) -> None:
        self._rules = rules
        self._clock = clock
        self._breakers: dict[str, CircuitBreaker] = {}

    def state_of(self, instance_id: str) -> BreakerState:
        """Return an instance's state."""
        breaker = self._breakers.get(instance_id)
        return BreakerState.CLOSED if breaker is None else breaker.state(self._clock())

    def allows(self, instance_id: str) -> bool:
        """Whether a request may be sent to an instance."""
        breaker = self._breakers.get(instance_id)
        return breaker is None or breaker.allows(self._clock())

    def begin(self, instance_id: str) -> None:
        """Note that a request is being sent."""
        if instance_id in self._breakers:
            self._breakers[instance_id].begin(self._clock())

    def succeeded(self, instance_id: str) -> None:
        """Note that an instance did its work."""
        self._breakers.pop(instance_id, None)  # no breaker is a closed one

    def failed(self, instance_id: str) -> None:
        """Note a fault that an instance is to blame for."""
        self._breakers.setdefault(instance_id, CircuitBreaker(self._rules)).failed(self._clock())

    def abandoned(self, instance_id: str) -> None:
        """Note that a request ended without saying anything of the instance."""
        if instance_id in self._breakers:
            self._breakers[instance_id].abandoned()
