"""Admission by Render's exact tokens: waiting, refusing, and giving everything back."""

import asyncio

import pytest

from motor.simulator import FaultKind
from tests.deployment import CHAT, QUIET, deployment, eventually, user

# 15 prompt tokens and 16 expected output tokens each: one at a time.
ONE_AT_A_TIME = {"max_inflight_tokens": 40}
BODY = user("Say hello.", max_tokens=16, **QUIET)


async def test_what_does_not_fit_waits_its_turn() -> None:
    async with deployment(flow_control=ONE_AT_A_TIME) as d:
        answers = await asyncio.gather(*(d.post(CHAT, {**BODY, "stream": n % 2 == 0}) for n in range(6)))
        assert [answer.status for answer in answers] == [200] * 6
        await d.check_nothing_left()


async def test_a_full_queue_is_429_and_a_deadline_503() -> None:
    settings = {**ONE_AT_A_TIME, "max_queue_requests": 1, "queue_timeout_seconds": 0.2}
    async with deployment(flow_control=settings) as d:
        d.engines[0].faults.set(FaultKind.HANG, endpoint="generate", times=1)
        first = asyncio.create_task(d.post(CHAT, BODY))
        await eventually(lambda: d.engines[0].stats.num_open == 1, "the first one runs")
        second = asyncio.create_task(d.post(CHAT, BODY))
        await eventually(lambda: d.built.gate.num_waiting == 1, "the second one waits")
        refused = await d.post(CHAT, BODY)
        assert (refused.status, refused.json["error"]["code"]) == (429, 429)
        assert int(refused.headers["Retry-After"]) >= 1
        assert (await second).status == 503
        assert d.num_generates == 1  # who is refused costs no engine anything
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await d.check_nothing_left()


async def test_a_client_that_leaves_the_queue_leaves_nothing_there() -> None:
    async with deployment(flow_control=ONE_AT_A_TIME) as d:
        d.engines[0].faults.set(FaultKind.HANG, endpoint="generate", times=1)
        asking = [asyncio.create_task(d.post(CHAT, BODY)) for _ in range(3)]
        await eventually(lambda: d.built.gate.num_waiting == 2, "two wait")
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await d.check_nothing_left()


async def test_rates_count_per_tenant() -> None:
    settings = {"tenant_header": "X-Tenant", "requests_per_minute": 1}
    async with deployment(flow_control=settings) as d:
        statuses = [(await d.post(CHAT, BODY, {"X-Tenant": tenant})).status for tenant in ("a", "a", "b")]
        assert statuses == [200, 429, 200]
        await d.check_nothing_left()


async def test_the_estimate_follows_the_output() -> None:
    settings = {"max_inflight_tokens": 10_000, "expected_output_tokens": 1}
    async with deployment(flow_control=settings, engine={"tokens_per_second": 100.0}) as d:
        asking = asyncio.create_task(d.post(CHAT, user("Show me emoji.", stream=True, **QUIET)))
        await eventually(lambda: d.built.gate.in_use_tokens > 18 + 5, "the lease has grown with the output")
        assert (await asking).status == 200
        await d.check_nothing_left()
