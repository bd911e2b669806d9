"""Chooses an endpoint, reserves its share of the load, and tells its instance's breaker how it went."""

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from motor.coordinator.domain.errors import EngineFault, NoInstanceAvailable, TokenOnlyUnsupported
from motor.coordinator.domain.instance import Instance, Role
from motor.coordinator.instances.breaker_board import BreakerBoard
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.kv_query.port import CacheScope, EndpointKey, KvQuery
from motor.coordinator.scheduling.decision_log import Decision, DecisionLog
from motor.coordinator.scheduling.demand import Demand
from motor.coordinator.scheduling.load_ledger import LoadLedger
from motor.coordinator.scheduling.ranking import Candidate, Policy, best, scores
from motor.coordinator.scheduling.reservation import Reservation
from motor.coordinator.telemetry.stages import StageClock

_NOTHING_CACHED: Mapping[EndpointKey, int] = {}


@dataclass(frozen=True, slots=True)
class SchedulingRules:
    """How endpoints are chosen.

    Attributes:
        policy: What ranks them.
        held_token_cost: See `ranking.cost_in_tokens`.
        max_output_tokens: Output that is expected of a prompt whose limit is higher.
        model_names: What clients may call the base model; another name is an adapter's.
    """

    policy: Policy = Policy.ROUND_ROBIN
    held_token_cost: float = 0.1
    max_output_tokens: int = 512
    model_names: tuple[str, ...] = ("",)

    def expected(self, demand: Demand) -> Demand:
        """Return a demand whose output is what can be expected."""
        return replace(demand, num_output_tokens=min(demand.num_output_tokens, self.max_output_tokens))

    def cache_scope(self, demand: Demand) -> CacheScope:
        """Return what a prompt can share cached blocks with."""
        is_adapter = demand.model is not None and demand.model not in self.model_names
        return CacheScope(self.model_names[0], demand.model if is_adapter else None, demand.cache_salt)


class Scheduler:
    """Ranks the usable endpoints of a role; sees token ids and counts, and nothing of Render.

    Mutable: the turn of each role.

    Args:
        registry: What exists.
        ledger: Who does how much.
        breakers: Who fails.
        rules: How to choose.
        decisions: Where choices are noted.
        kv_query: Who holds which prefix; asked if the policy wants it.
    """

    def __init__(
        self,
        registry: InstanceRegistry,
        ledger: LoadLedger,
        breakers: BreakerBoard,
        *,
        rules: SchedulingRules,
        decisions: DecisionLog,
        kv_query: KvQuery | None = None,
    ) -> None:
        self._registry = registry
        self._ledger = ledger
        self._breakers = breakers
        self._rules = rules
        self._decisions = decisions
        self._kv_query = kv_query if rules.policy is Policy.KV_CACHE_AFFINITY else None
        self._turns: Counter[Role] = Counter()

    @asynccontextmanager
    async def reserve(
        self,
        roles: Sequence[Role],
        demand: Demand,
        excluded_instances: frozenset[str] = frozenset(),
        clock: StageClock | None = None,
    ) -> AsyncIterator[Reservation]:
        """Choose an endpoint of the first role that has a usable one, and hold its share until the block ends.

        A fault that leaves the block without an owner is this instance's: it gets its id, and the breaker hears of it.

        Args:
            roles: What may serve, the preferred role first.
            demand: The prompt.
            excluded_instances: Ids of instances that failed this request already.
            clock: Where the time of `kv_query` and `schedule` is booked, and the instance noted.

        Raises:
            NoInstanceAvailable: None of those roles is usable.
        """
        reservation = await self._choose(roles, self._rules.expected(demand), excluded_instances, clock)
        instance = reservation.instance
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

    async def _choose(
        self, roles: Sequence[Role], demand: Demand, excluded_instances: frozenset[str], clock: StageClock | None
    ) -> Reservation:
        """Ask who holds the prompt, then choose and book without a pause in between."""
        begun = clock.now() if clock is not None else 0.0
        cached = await self._cached_tokens(demand)
        asked = clock.now() if clock is not None else 0.0
        reservation = self._reserve_best(roles, demand, excluded_instances, cached)
        if clock is not None:
            if self._kv_query is not None:
                clock.add("kv_query", asked - begun)
            clock.add("schedule", clock.now() - asked)
            clock.note_instance(reservation.instance.id)
        return reservation

    async def _cached_tokens(self, demand: Demand) -> Mapping[EndpointKey, int]:
        if self._kv_query is None or not demand.token_ids:
            return _NOTHING_CACHED
        return await self._kv_query.matched_tokens(demand.token_ids, self._rules.cache_scope(demand))

    def _reserve_best(
        self,
        roles: Sequence[Role],
        demand: Demand,
        excluded_instances: frozenset[str],
        cached: Mapping[EndpointKey, int],
    ) -> Reservation:
        for role in roles:
            instances, passed_over = self._usable(role, excluded_instances)
            if instances:
                candidates = [
                    Candidate(instance, key, self._ledger.load_of(key), cached.get(key, 0))
                    for instance in instances
                    for key in _endpoints(instance)
                ]
                scored = scores(candidates, demand, self._rules.policy, self._rules.held_token_cost)
                chosen = best(candidates, scored, self._turns[role])
                self._turns[role] += 1
                self._decisions.remember(
                    Decision(self._rules.policy, role, demand, candidates, scored, passed_over, chosen.key)
                )
                if self._kv_query is not None and demand.token_ids:
                    self._kv_query.note_routed(demand.token_ids, self._rules.cache_scope(demand), chosen.key)
                return Reservation(chosen.instance, chosen.key, self._ledger, demand, chosen.num_cached_tokens)
        raise NoInstanceAvailable(f"no {' or '.join(roles)} instance is available")

    def _usable(self, role: Role, excluded_instances: frozenset[str]) -> tuple[list[Instance], dict[str, str]]:
        """Return the best instances there are, and why not the others: working ones that have not failed this request.

        If there is none, working ones. Where every breaker is open, all are tried again: retries are bounded anyway,
        and a deployment that refuses everything because each engine has failed a few times would be down for longer
        than its engines.
        """
        instances = self._registry.with_role(role)
        passed_over = {one.id: "breaker_open" for one in instances if not self._breakers.allows(one.id)}
        if len(passed_over) == len(instances):
            passed_over = {}
        working = [one for one in instances if one.id not in passed_over]
        fresh = [one for one in working if one.id not in excluded_instances]
        if not fresh:
            return working, passed_over
        return fresh, passed_over | {one.id: "failed_this_request" for one in working if one not in fresh}


def _endpoints(instance: Instance) -> list[EndpointKey]:
    return [EndpointKey(instance.id, rank) for rank in range(instance.data_parallel_size)]
