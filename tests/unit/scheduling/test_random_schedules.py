"""10,000 random schedules of arrivals, cancellations and faults: what is booked is what is live."""

import random
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest

from motor.coordinator.domain.errors import EngineBroken, EngineUnreachable, TokenOnlyUnsupported
from motor.coordinator.domain.instance import Instance, Role
from motor.coordinator.domain.tokens import PhysicalTokenIds
from motor.coordinator.instances.breaker_board import BreakerBoard
from motor.coordinator.instances.circuit_breaker import BreakerRules
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.kv_query.port import CacheScope, EndpointKey
from motor.coordinator.scheduling.decision_log import DecisionLog
from motor.coordinator.scheduling.demand import Demand
from motor.coordinator.scheduling.load_ledger import NO_LOAD, Load, LoadLedger
from motor.coordinator.scheduling.ranking import Policy
from motor.coordinator.scheduling.reservation import Reservation
from motor.coordinator.scheduling.scheduler import Scheduler, SchedulingRules

NUM_SCHEDULES = 10_000
NUM_STEPS = 12
INSTANCES = [
    Instance("p", Role.PREFILL, "http://p", 2),
    Instance("d0", Role.DECODE, "http://d0"),
    Instance("d1", Role.DECODE, "http://d1"),
    Instance("u0", Role.UNION, "http://u0"),
    Instance("u1", Role.UNION, "http://u1", 3),
]
FAULTS = [EngineBroken("x"), EngineUnreachable("x"), TokenOnlyUnsupported("x"), KeyError("a bug")]


class RandomCaches:
    """A conductor that holds anything of anything."""

    def __init__(self, source: random.Random) -> None:
        self.random = source

    async def matched_tokens(self, token_ids: PhysicalTokenIds, scope: CacheScope) -> dict[EndpointKey, int]:
        keys = [EndpointKey(one.id, rank) for one in INSTANCES for rank in range(one.data_parallel_size)]
        return {key: self.random.randrange(2 * len(token_ids)) for key in keys if self.random.random() < 0.5}

    def note_routed(self, token_ids: PhysicalTokenIds, scope: CacheScope, endpoint: EndpointKey) -> None:
        assert endpoint.data_parallel_rank < next(
            one.data_parallel_size for one in INSTANCES if one.id == endpoint.instance_id
        )


@dataclass
class Running:
    """A request that holds a share, and what that share must be."""

    stack: AsyncExitStack
    reservation: Reservation
    compute: int
    kv: int


class World:
    """One schedule; `now` moves as it likes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311 - a repeatable sequence is what it is for
        self.now = 0.0
        self.ledger = LoadLedger()
        self.running: list[Running] = []
        self.scheduler = Scheduler(
            InstanceRegistry(INSTANCES),
            self.ledger,
            BreakerBoard(BreakerRules(), lambda: self.now),
            rules=SchedulingRules(policy=self.random.choice(list(Policy)), max_output_tokens=64),
            decisions=DecisionLog(4),
            kv_query=RandomCaches(self.random),
        )

    async def arrive(self) -> None:
        num_tokens = self.random.randrange(1, 400)
        demand = Demand(num_tokens, self.random.randrange(128), PhysicalTokenIds(tuple(range(num_tokens))))
        roles = self.random.choice([(Role.UNION,), (Role.PREFILL,), (Role.DECODE,), (Role.UNION, Role.DECODE)])
        demand = self.random.choice([demand, demand.for_prefill(), demand.for_decode()])
        excluded = frozenset(one.id for one in INSTANCES if self.random.random() < 0.3)
        stack = AsyncExitStack()
        reservation = await stack.enter_async_context(self.scheduler.reserve(roles, demand, excluded))
        compute = max(0, num_tokens - reservation.num_cached_tokens) if demand.computes_prompt else 0
        self.running.append(Running(stack, reservation, compute, num_tokens + min(demand.num_output_tokens, 64)))

    async def end(self) -> None:
        one = self.running.pop(self.random.randrange(len(self.running)))
        fault = self.random.choice([None, None, *FAULTS])
        if fault is None:
            await one.stack.aclose()
            return
        with pytest.raises(type(fault)):
            async with one.stack:
                raise fault

    def release(self) -> None:
        one = self.random.choice(self.running)
        if self.random.random() < 0.5:
            one.reservation.release_compute()
            one.compute = 0
        else:
            one.reservation.release_kv()
            one.kv = 0

    def check(self) -> None:
        for instance in INSTANCES:
            for rank in range(instance.data_parallel_size):
                key = EndpointKey(instance.id, rank)
                live = [one for one in self.running if one.reservation.key == key]
                expected = Load(len(live), sum(one.compute for one in live), sum(one.kv for one in live))
                assert self.ledger.load_of(key) == expected

    async def run(self) -> None:
        for _ in range(NUM_STEPS):
            self.now += self.random.choice([0.0, 0.5, 30.0])
            action = self.random.random()
            if action < 0.5 or not self.running:
                await self.arrive()
            elif action < 0.75:
                self.release()
            else:
                await self.end()
            self.check()
        while self.running:
            await self.end()
        assert self.ledger.is_empty
        assert self.ledger.load_of(EndpointKey("p")) == NO_LOAD


async def test_random_schedules_leave_nothing() -> None:
    for seed in range(NUM_SCHEDULES):
        await World(seed).run()
