"""Chooses an instance, reserves its share of the load, and tells its breaker how it went."""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from motor.coordinator.domain.errors import EngineFault, NoInstanceAvailable, TokenOnlyUnsupported
from motor.coordinator.domain.instance import Instance, Role
from motor.coordinator.instances.breaker_board import BreakerBoard
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.scheduling.load_ledger import LoadLedger
from motor.coordinator.scheduling.ranking import round_robin
from motor.coordinator.scheduling.reservation import Reservation


class Scheduler:
    """Round robin over the usable instances of a role; sees token counts and nothing of Render.

    Mutable: the turn of each role.
    """

    def __init__(self, registry: InstanceRegistry, ledger: LoadLedger, breakers: BreakerBoard) -> None:
        self._registry = registry
        self._ledger = ledger
        self._breakers = breakers
        self._turns: Counter[Role] = Counter()

    @asynccontextmanager
    async def reserve(
        self, roles: Sequence[Role], num_prompt_tokens: int, excluded_instances: frozenset[str] = frozenset()
    ) -> AsyncIterator[Reservation]:
        """Choose an instance of the first role that has a usable one, and hold its share until the block ends.

        A fault that leaves the block without an owner is this instance's: it gets its id, and the breaker hears of it.

        Raises:
            NoInstanceAvailable: None of those roles is usable.
        """
        instance = self.choose(roles, excluded_instances)
        reservation = Reservation(instance, self._ledger, num_prompt_tokens)
        self._breakers.begin(instance.id)
        try:
            yield reservation
        except EngineFault as fault:
            fault.instance_id = fault.instance_id or instance.id
            if fault.blames_instance and fault.instance_id == instance.id:
                self._breakers.failed(instance.id)
            else:
                self._breakers.abandoned(instance.id)
            raise
        except TokenOnlyUnsupported as error:
            error.instance_id = error.instance_id or instance.id
            self._breakers.abandoned(instance.id)
            raise
        except BaseException:
            self._breakers.abandoned(instance.id)
            raise
        else:
            self._breakers.succeeded(instance.id)
        finally:
            reservation.close()

    def has_usable(self, role: Role) -> bool:
        """Whether any instance of a role is not known to fail."""
        return any(self._breakers.allows(instance.id) for instance in self._registry.with_role(role))

    def choose(self, roles: Sequence[Role], excluded_instances: frozenset[str] = frozenset()) -> Instance:
        """Return the next instance; raises as `reserve`."""
        for role in roles:
            candidates = self._candidates(role, excluded_instances)
            if candidates:
                turn = self._turns[role]
                self._turns[role] += 1
                return round_robin(candidates, turn)
        raise NoInstanceAvailable(f"no {' or '.join(roles)} instance is available")

    def _candidates(self, role: Role, excluded_instances: frozenset[str]) -> list[Instance]:
        """Return the best instances there are: working ones that have not failed this request, then working ones.

        Where every breaker is open, all are tried again: retries are bounded anyway, and a deployment that refuses
        everything because each engine has failed a few times would be down for longer than its engines.
        """
        instances = self._registry.with_role(role)
        working = [one for one in instances if self._breakers.allows(one.id)] or list(instances)
        return [one for one in working if one.id not in excluded_instances] or working
