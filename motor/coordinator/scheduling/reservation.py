"""One request's share of an endpoint. Mutable: `_compute`, `_kv`, `_is_live`."""

from motor.coordinator.domain.instance import Instance
from motor.coordinator.kv_query.port import EndpointKey
from motor.coordinator.scheduling.demand import Demand
from motor.coordinator.scheduling.load_ledger import Load, LoadLedger
from motor.coordinator.scheduling.ranking import num_uncached_tokens


class Reservation:
    """Books a share when made and gives every part of it back exactly once.

    Attributes:
        instance: Whose load it is.
        key: The endpoint among the instance's.
        num_cached_tokens: How much of the prompt the endpoint held when it was chosen, as far as was known.

    Args:
        instance: See above.
        key: See above.
        ledger: Where it is booked.
        demand: The prompt to compute, the tokens to hold.
        num_cached_tokens: See above; they are not computed again.
    """

    def __init__(
        self, instance: Instance, key: EndpointKey, ledger: LoadLedger, demand: Demand, num_cached_tokens: int = 0
    ) -> None:
        self.instance = instance
        self.key = key
        self.num_cached_tokens = num_cached_tokens
        self._ledger = ledger
        self._compute = num_uncached_tokens(demand, num_cached_tokens)
        self._kv = demand.num_prompt_tokens + demand.num_output_tokens
        self._is_live = True
        ledger.add(key, Load(1, self._compute, self._kv))

    @property
    def data_parallel_rank(self) -> int | None:
        """The rank that the engine must use; `None` if it has only one."""
        return self.key.data_parallel_rank if self.instance.data_parallel_size > 1 else None

    def release_compute(self) -> None:
        """The prompt has been computed; a second call does nothing."""
        self._ledger.take_back(self.key, Load(0, self._compute, 0))
        self._compute = 0

    def release_kv(self) -> None:
        """The prompt's KV cache is no longer held for this request; a second call does nothing."""
        self._ledger.take_back(self.key, Load(0, 0, self._kv))
        self._kv = 0

    def close(self) -> None:
        """Give back whatever is left; a second call does nothing."""
        self._ledger.take_back(self.key, Load(int(self._is_live), self._compute, self._kv))
        self._compute = self._kv = 0
        self._is_live = False
