"""One request's share of an instance. Mutable: `_compute`, `_kv`, `_is_live`."""

from motor.coordinator.domain.instance import Instance
from motor.coordinator.scheduling.load_ledger import Load, LoadLedger


class Reservation:
    """Books a share when made and gives every part of it back exactly once.

    Args:
        instance: Whose load it is.
        ledger: Where it is booked.
        num_tokens: Of the prompt: to be computed, and to be held in the KV cache.
    """

    def __init__(self, instance: Instance, ledger: LoadLedger, num_tokens: int) -> None:
        self.instance = instance
        self._ledger = ledger
        self._compute = num_tokens
        self._kv = num_tokens
        self._is_live = True
        ledger.add(instance.id, Load(1, num_tokens, num_tokens))

    def release_compute(self) -> None:
        """The prompt has been computed; a second call does nothing."""
        self._ledger.take_back(self.instance.id, Load(0, self._compute, 0))
        self._compute = 0

    def release_kv(self) -> None:
        """The prompt's KV cache is no longer held for this request; a second call does nothing."""
        self._ledger.take_back(self.instance.id, Load(0, 0, self._kv))
        self._kv = 0

    def close(self) -> None:
        """Give back whatever is left; a second call does nothing."""
        self._ledger.take_back(self.instance.id, Load(int(self._is_live), self._compute, self._kv))
        self._compute = self._kv = 0
        self._is_live = False
