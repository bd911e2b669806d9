"""Who is doing how much: the sum of all live reservations, per instance. Mutable: `_loads`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Work reserved on one instance."""

    num_requests: int = 0
    num_tokens: int = 0


class LoadLedger:
    """Adds and takes back reservations; every share that was added must be taken back exactly once."""

    def __init__(self) -> None:
        self._loads: dict[str, Load] = {}

    def load_of(self, instance_id: str) -> Load:
        """Return the work reserved on an instance."""
        return self._loads.get(instance_id, Load())

    @property
    def num_reservations(self) -> int:
        """Live reservations over all instances; zero when nothing leaks."""
        return sum(load.num_requests for load in self._loads.values())

    def add(self, instance_id: str, num_tokens: int) -> None:
        """Book one request of `num_tokens`."""
        load = self.load_of(instance_id)
        self._loads[instance_id] = Load(load.num_requests + 1, load.num_tokens + num_tokens)

    def take_back(self, instance_id: str, num_tokens: int) -> None:
        """Undo one `add`.

        Raises:
            ValueError: More would be taken back than was booked.
        """
        load = self.load_of(instance_id)
        if load.num_requests < 1 or load.num_tokens < num_tokens:
            raise ValueError(f"more taken back than booked on {instance_id}")
        left = Load(load.num_requests - 1, load.num_tokens - num_tokens)
        if left == Load():
            del self._loads[instance_id]
        else:
            self._loads[instance_id] = left
