"""The attempt loop: which instances it leaves out, how long it waits, when it gives up."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from motor.coordinator.domain.errors import EngineFault, EngineOverloaded, EngineRecomputed, EngineUnreachable
from motor.coordinator.domain.generation import GenerateChoice, GenerateChunk, GenerateResponse
from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.domain.tokens import SemanticTokenIds
from motor.coordinator.render.models import TokenizedRequest
from motor.coordinator.router.rescheduler import Rescheduler, RetryRules
from motor.coordinator.router.retry_budget import RetryBudget
from motor.coordinator.router.topology import Attempt
from motor.coordinator.telemetry.stages import StageClock

CLIENT = ClientRequest("request", "peer", Api.CHAT, b"{}", {})
PROMPT = TokenizedRequest(0, SemanticTokenIds((1, 2, 3)), {"max_tokens": 10})
ANSWER = GenerateResponse(choices=[GenerateChoice(index=0, token_ids=[7], finish_reason="stop")])
FAST = RetryRules(delay_seconds=0.0)


def fault(kind: type[EngineFault] = EngineUnreachable, instance_id: str | None = "a") -> EngineFault:
    made = kind("broken")
    made.instance_id = instance_id
    return made


@dataclass
class ScriptedTopology:
    """Fails as it is told, then answers; `attempts` grows."""

    faults: Sequence[EngineFault]
    attempts: list[Attempt] = field(default_factory=list)

    async def generate(self, attempt: Attempt, request: TokenizedRequest) -> GenerateResponse:
        self.attempts.append(attempt)
        if len(self.attempts) <= len(self.faults):
            raise self.faults[len(self.attempts) - 1]
        return ANSWER

    @asynccontextmanager
    async def stream(self, attempt: Attempt, request: TokenizedRequest) -> AsyncIterator[AsyncGenerator[GenerateChunk]]:
        raise NotImplementedError
        yield


async def run(
    *faults: EngineFault, rules: RetryRules = FAST, budget: RetryBudget | None = None, times: Sequence[float] = ()
) -> ScriptedTopology:
    """Run one request; the clock shows `times`, then stays at the last one."""
    topology = ScriptedTopology(faults)
    shown = list(times)
    clock = StageClock(lambda: shown.pop(0) if len(shown) > 1 else (shown or [0.0])[0])
    loop = Rescheduler(topology, rules, budget or RetryBudget(0.0, 100), lambda: 0.0, lambda _plan: None)
    await loop.generate(CLIENT, PROMPT, clock)
    return topology


async def test_instances_that_failed_are_left_out() -> None:
    topology = await run(fault(instance_id="a"), fault(instance_id="b"))
    assert [sorted(attempt.excluded_instances) for attempt in topology.attempts] == [[], ["a"], ["a", "b"]]
    assert [attempt.number for attempt in topology.attempts] == [0, 1, 2]
    assert len({attempt.base_request_id for attempt in topology.attempts}) == 1


async def test_an_instance_that_says_not_now_is_left_out_as_well() -> None:
    topology = await run(fault(EngineOverloaded))
    assert topology.attempts[1].excluded_instances == {"a"}


async def test_an_instance_out_of_blocks_may_be_asked_again() -> None:
    topology = await run(fault(EngineRecomputed))
    assert topology.attempts[1].excluded_instances == frozenset()


async def test_recomputing_costs_no_attempt_and_no_retry_and_has_its_own_limit() -> None:
    rules = RetryRules(max_attempts=1, max_recomputes=3)
    topology = await run(*[fault(EngineRecomputed)] * 3, rules=rules, budget=RetryBudget(0.0, 0))
    assert len(topology.attempts) == 4
    with pytest.raises(EngineRecomputed):
        await run(*[fault(EngineRecomputed)] * 4, rules=rules)


@pytest.mark.parametrize("num_faults", [4, 5])
async def test_the_last_attempt_s_fault_is_the_answer(num_faults: int) -> None:
    faults = [fault(instance_id=str(number)) for number in range(num_faults)]
    if num_faults < 5:
        assert len((await run(*faults)).attempts) == 5
        return
    with pytest.raises(EngineUnreachable) as raised:
        await run(*faults)
    assert raised.value is faults[-1]


async def test_an_empty_budget_ends_the_attempts() -> None:
    with pytest.raises(EngineUnreachable):
        await run(fault(), budget=RetryBudget(0.0, 0))


@pytest.mark.parametrize(("now", "num_attempts"), [(9.0, 2), (11.0, 1)])
async def test_no_attempt_begins_after_the_request_s_time(now: float, num_attempts: int) -> None:
    rules = RetryRules(request_seconds=10.0)
    if num_attempts == 2:
        assert len((await run(fault(), rules=rules, times=[0.0, now])).attempts) == 2
        return
    with pytest.raises(EngineUnreachable):
        await run(fault(), rules=rules, times=[0.0, now])


async def test_the_wait_before_an_attempt_is_part_of_the_request_s_time() -> None:
    """The second retry would begin 5 s later (half of the delay is jitter, here none), past the limit of 10."""
    rules = RetryRules(request_seconds=10.0, delay_seconds=10.0, max_delay_seconds=10.0)
    with pytest.raises(EngineUnreachable):
        await run(fault(), fault(instance_id="b"), rules=rules, times=[0.0, 1.0, 6.0])


async def test_a_refused_attempt_takes_nothing_from_the_budget() -> None:
    budget = RetryBudget(0.0, 1)
    with pytest.raises(EngineUnreachable):
        await run(fault(), rules=RetryRules(max_attempts=1), budget=budget)
    assert budget.take_out()
