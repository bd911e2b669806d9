"""Chooses an instance and reserves its share of the load. Mutable: the turn of each role."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from motor.coordinator.domain.errors import NoInstanceAvailable
from motor.coordinator.domain.instance import Instance, Role
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.scheduling.load_ledger import LoadLedger
from motor.coordinator.scheduling.ranking import round_robin
from motor.coordinator.telemetry.stages import StageClock


class Scheduler:
    """Round robin over the instances of a role; sees token counts and nothing of Render."""

    def __init__(self, registry: InstanceRegistry, ledger: LoadLedger) -> None:
        self._registry = registry
        self._ledger = ledger
        self._turns: Counter[Role] = Counter()

    @asynccontextmanager
    async def reserve(
        self,
        role: Role,
        num_prompt_tokens: int,
        excluded_instances: frozenset[str] = frozenset(),
        clock: StageClock | None = None,
    ) -> AsyncIterator[Instance]:
        """Choose an instance and hold its share until the block ends.

        Raises:
            NoInstanceAvailable: None of that role is left.
        """
        with clock.stage("schedule") if clock is not None else nullcontext():
            instance = self.choose(role, excluded_instances)
        self._ledger.add(instance.id, num_prompt_tokens)
        try:
            yield instance
        finally:
            self._ledger.take_back(instance.id, num_prompt_tokens)

    def choose(self, role: Role, excluded_instances: frozenset[str] = frozenset()) -> Instance:
        """Return the next instance of a role; raises as `reserve`."""
        candidates = [one for one in self._registry.with_role(role) if one.id not in excluded_instances]
        if not candidates:
            raise NoInstanceAvailable(f"no {role} instance is available")
        turn = self._turns[role]
        self._turns[role] += 1
        return round_robin(candidates, turn)
