"""A sidecar that is no help: what serves instead, and what that costs (RFC: Render Token In fallback)."""

import asyncio

import pytest

from motor.coordinator.kv_query.port import EndpointKey
from motor.simulator import FaultKind
from tests.deployment import CHAT, COMPLETIONS, MODEL, QUIET, Deployment, deployment, eventually, user
from tests.event_reader import DONE, open_stream
from tests.step_clock import StepClock

HELLO, TEXT = user("Say hello.", **QUIET), "Hello there! I am a tiny test model."


async def metric(d: Deployment, name: str) -> float:
    """Return one series of `/metrics`; 0 if it isn't there."""
    lines = (await d.get(d.management_url + "/metrics")).body.decode().splitlines()
    return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + " ")), 0.0)


async def test_the_sidecar_is_absent_from_the_start_and_comes() -> None:
    async with deployment() as d:
        assert d.render is not None
        await d.render.crash()
        answer = await d.post(CHAT, HELLO)
        assert (answer.text(), answer.headers["x-motor-chain"]) == (TEXT, "native")
        await d.render.restart()
        answer = await d.post(CHAT, HELLO)
        assert (answer.text(), answer.headers["x-motor-chain"]) == (TEXT, "token")
        await d.check_nothing_left()


async def test_requests_are_scheduled_by_local_ids() -> None:
    """The engine's time stands still meanwhile, so that its load can be seen."""
    prompt = list(range(40, 77))
    async with deployment(engine={"clock": StepClock()}) as d:
        assert d.render is not None
        d.render.faults.set(FaultKind.STATUS, endpoint="render", status=500)
        body = {"model": "tiny", "prompt": prompt, "max_tokens": 5}
        async with open_stream(d, COMPLETIONS, body) as stream:
            await stream.next()
            assert d.built.ledger.load_of(EndpointKey("e0")).num_compute_tokens == len(prompt)
        await d.check_nothing_left()


async def test_without_a_tokenizer_the_length_is_estimated_and_that_is_told() -> None:
    async with deployment(model={"served_model_name": "tiny", "path": None}) as d:
        assert d.render is not None
        d.render.faults.set(FaultKind.STATUS, endpoint="render", status=500)
        assert (await d.post(CHAT, HELLO)).text() == TEXT
        assert await metric(d, 'motor_fallback_tokenizer_total{source="length"}') == 1
        await d.check_nothing_left()


async def test_a_wrong_number_of_prompts_is_no_answer() -> None:
    rendered = [{"token_ids": [5], "sampling_params": {}}]
    body = {"model": "tiny", "prompt": ["The quick brown fox", "def add(a, b):"], "max_tokens": 30, "temperature": 0}
    async with deployment() as d:
        assert d.render is not None
        d.render.faults.set(FaultKind.STATUS, endpoint="render", status=200, body=rendered)
        answer = await d.post(COMPLETIONS, body)
        assert [answer.text(0), answer.text(1)] == [" jumps over the lazy dog.", "\n    return a + b"]
        assert answer.headers["x-motor-chain"] == "native"
        assert await metric(d, 'motor_render_fallback_total{reason="malformed"}') == 1
        await d.check_nothing_left()


async def test_a_dead_sidecar_costs_new_requests_nothing_until_it_is_back() -> None:
    async with deployment(render_config={"timeout_ms": 1000}) as d:
        assert d.render is not None
        fault = d.render.faults.set(FaultKind.HANG, endpoint="render")
        for _ in range(3):
            assert (await d.post(CHAT, HELLO)).text() == TEXT
        asked = d.render.stats.requests["render_chat"]
        for _ in range(5):
            assert (await d.post(CHAT, HELLO)).text() == TEXT
        assert d.render.stats.requests["render_chat"] == asked == 3
        assert await metric(d, 'motor_render_fallback_total{reason="suspended"}') == 5
        d.render.faults.clear()
        await d.wait_for_render()
        assert (await d.post(CHAT, HELLO)).headers["x-motor-chain"] == "token"
        assert fault.num_hits >= 3
        await d.check_nothing_left()


async def test_a_suspension_never_touches_streams_under_way() -> None:
    clock = StepClock()
    async with deployment(engine={"clock": clock}) as d:
        assert d.render is not None
        async with open_stream(d, CHAT, user("What is the capital of France?", **QUIET)) as stream:
            await stream.take(2)
            d.render.faults.set(FaultKind.STATUS, endpoint="render", status=500)
            fallbacks = [asyncio.create_task(d.post(CHAT, HELLO)) for _ in range(4)]
            await eventually(lambda: d.render is not None and d.render.stats.num_renders >= 4, "renders fail")
            clock.run()
            *_, last = await stream.rest()
            assert last == DONE
            assert all([(await one).headers["x-motor-chain"] == "native" for one in fallbacks])
        await d.check_nothing_left()


@pytest.mark.parametrize("is_second_dead", [False, True], ids=["one of two", "both"])
async def test_processes_are_judged_one_by_one(is_second_dead: bool) -> None:
    async with deployment(has_render=True) as first, deployment(has_render=True) as second:
        assert first.render is not None
        assert second.render is not None
        sidecars = [first.render, second.render]
        endpoints = [{"host": "127.0.0.1", "port": one.port} for one in sidecars]
        async with deployment(render_config={"endpoints": endpoints}) as d:
            for one in sidecars[: 2 if is_second_dead else 1]:
                one.faults.set(FaultKind.STATUS, endpoint="render", status=500)
            chains = [(await d.post(CHAT, HELLO)).headers["x-motor-chain"] for _ in range(12)]
            assert chains[-3:] == (["native"] * 3 if is_second_dead else ["token"] * 3)
            await d.check_nothing_left()


async def test_the_local_tokenizer_is_not_loaded_while_render_works() -> None:
    async with deployment(model={"served_model_name": "tiny", "path": str(MODEL)}) as d:
        assert (await d.post(CHAT, HELLO)).text() == TEXT
        assert await metric(d, 'motor_fallback_tokenizer_total{source="local"}') == 0
        await d.check_nothing_left()
