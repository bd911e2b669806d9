"""Who is doing how much: the sum of all live reservations, per endpoint. Mutable: `_loads`."""

from dataclasses import dataclass

from motor.coordinator.kv_query.port import EndpointKey


@dataclass(frozen=True, slots=True)
class Load:
    """Work reserved on one endpoint.

    Attributes:
        num_requests: Live reservations.
        num_compute_tokens: Tokens being computed.
        num_kv_tokens: Tokens whose KV cache is held.
    """

    num_requests: int = 0
    num_compute_tokens: int = 0
    num_kv_tokens: int = 0

    def plus(self, other: "Load") -> "Load":
        """Return the sum."""
        return Load(
            self.num_requests + other.num_requests,
            self.num_compute_tokens + other.num_compute_tokens,
            self.num_kv_tokens + other.num_kv_tokens,
        )

    def minus(self, other: "Load") -> "Load":
        """Return the difference.

        Raises:
            ValueError: A part would be negative.
        """
        left = Load(
            self.num_requests - other.num_requests,
            self.num_compute_tokens - other.num_compute_tokens,
            self.num_kv_tokens - other.num_kv_tokens,
        )
        if min(left.num_requests, left.num_compute_tokens, left.num_kv_tokens) < 0:
            raise ValueError("more taken back than was booked")
        return left


NO_LOAD = Load()


class LoadLedger:
    """Adds and takes back shares; every share that was added must be taken back exactly once."""

    def __init__(self) -> None:
        self._loads: dict[EndpointKey, Load] = {}

    def load_of(self, endpoint: EndpointKey) -> Load:
        """Return the work reserved on an endpoint."""
        return self._loads.get(endpoint, NO_LOAD)

    @property
    def num_reservations(self) -> int:
        """Live reservations over all endpoints; zero when nothing leaks."""
        return sum(load.num_requests for load in self._loads.values())

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all is reserved."""
        return not self._loads

    def add(self, endpoint: EndpointKey, share: Load) -> None:
        """Book a share."""
        self._loads[endpoint] = self.load_of(endpoint).plus(share)

    def take_back(self, endpoint: EndpointKey, share: Load) -> None:
        """Undo an `add`, or a part of it.

        Raises:
            ValueError: More would be taken back than was booked.
        """
        left = self.load_of(endpoint).minus(share)
        if left == NO_LOAD:
            self._loads.pop(endpoint, None)
        else:
            self._loads[endpoint] = left
