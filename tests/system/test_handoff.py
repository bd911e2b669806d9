"""Handoff over simulated prefill and decode engines: legs, parameters used once, blocks given back."""

import asyncio
import json
from typing import Any

import pytest

from motor.simulator import FaultKind
from tests.deployment import CHAT, COMPLETIONS, QUIET, Deployment, deployment, eventually, user

STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
HELLO = "Hello there! I am a tiny test model."


def handoff(**settings: Any) -> Any:
    settings.setdefault("num_engines", 2)
    roles = ["prefill", *["decode"] * (settings["num_engines"] - 1)]
    return deployment(roles=settings.pop("roles", roles), deploy_mode="handoff", **settings)


def legs(d: Deployment) -> list[dict[str, int]]:
    return [dict(engine.stats.legs) for engine in d.engines]


@STREAMS
async def test_prefill_then_decode(stream: bool) -> None:
    async with handoff() as d:
        answer = await d.post(CHAT, user("Say hello.", stream=stream, **QUIET))
        assert (answer.status, answer.text()) == (200, HELLO)
        assert legs(d) == [{"prefill": 1}, {"decode": 1}]
        await d.check_nothing_left()


@STREAMS
async def test_prompt_lists(stream: bool) -> None:
    body = {"model": "tiny", "prompt": ["The quick brown fox", "def add(a, b):"], "max_tokens": 40, "temperature": 0}
    async with handoff() as d:
        answer = await d.post(COMPLETIONS, {**body, "stream": stream})
        assert [answer.text(0), answer.text(1)] == [" jumps over the lazy dog.", "\n    return a + b"]
        assert legs(d) == [{"prefill": 2}, {"decode": 2}]
        await d.check_nothing_left()


@STREAMS
async def test_several_choices_are_decoded_alone(stream: bool) -> None:
    """Blocks can be taken over once, and every choice would take them."""
    async with handoff() as d:
        answer = await d.post(CHAT, user("Say hello.", n=2, stream=stream, **{**QUIET, "temperature": 1.0}))
        assert [answer.text(0), answer.text(1)] == [HELLO, HELLO]
        assert legs(d)[0] == {}
        await d.check_nothing_left()


@STREAMS
async def test_cached_tokens_are_those_of_prefill(stream: bool) -> None:
    async with handoff(engine={"cache_blocks": 64}) as d:
        body = user("Say hello. " * 20, stream=stream, max_tokens=4, **QUIET)
        body["stream_options"] = {"include_usage": True} if stream else None
        await d.post(CHAT, body)
        answer = await d.post(CHAT, body)
        usage = (answer.events[-2] if stream else answer.json)["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached == d.engines[0].stats.num_cached_tokens > 0
        await d.check_nothing_left()


async def test_without_prefill_decode_serves_alone_and_goes_back() -> None:
    async with handoff() as d:
        d.engines[0].faults.set(FaultKind.STATUS, endpoint="generate", status=500)
        for _ in range(3):
            assert (await d.post(CHAT, user("Say hello.", **QUIET))).text() == HELLO
        metrics = (await d.get(d.management_url + "/metrics")).body.decode()
        assert 'motor_topology_total{reason="no_prefill",topology="decode_alone"}' in metrics
        await d.check_nothing_left()


async def test_alone_is_a_choice_of_the_operator() -> None:
    settings = {"handoff": {"allow_decode_alone": False}, "relay": {"max_attempts": 2}}
    async with handoff(**settings) as d:
        d.engines[0].faults.set(FaultKind.STATUS, endpoint="generate", status=500)
        answer = await d.post(CHAT, user("Say hello.", **QUIET))
        assert answer.status == 502
        assert d.engines[1].stats.requests["generate"] == 0
        await d.check_nothing_left()


@STREAMS
async def test_a_decode_that_refuses_leaves_no_blocks_behind(stream: bool) -> None:
    """The next attempt gets a prefill of its own; the first one's blocks are read by the other decode engine."""
    async with handoff(num_engines=3) as d:
        for decode in d.engines[1:]:  # whichever is asked, and once more to free the blocks
            decode.faults.set(FaultKind.STATUS, endpoint="generate", leg="decode", status=500, times=1)
        answer = await d.post(CHAT, user("Say hello.", stream=stream, **QUIET))
        assert (answer.status, answer.text()) == (200, HELLO)
        await eventually(lambda: d.engines[0].num_kv_blocks_held == 0, "prefill's blocks are freed")
        await d.check_nothing_left()


async def test_a_client_that_leaves_between_the_legs_leaves_no_blocks_behind() -> None:
    async with handoff() as d:
        d.engines[1].faults.set(FaultKind.HANG, endpoint="generate", times=1)
        asking = asyncio.create_task(d.post(CHAT, user("Say hello.", **QUIET)))
        await eventually(lambda: d.engines[1].stats.num_open == 1, "decode has been asked")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await eventually(lambda: d.engines[0].num_kv_blocks_held == 0, "prefill's blocks are freed")
        await d.check_nothing_left()


@pytest.mark.parametrize("kind", [FaultKind.DIE, FaultKind.ERROR_EVENT, FaultKind.EOF])
async def test_a_decode_that_breaks_is_relayed_with_a_new_prefill(kind: FaultKind) -> None:
    async with handoff(num_engines=3) as d:
        for decode in d.engines[1:]:
            decode.faults.set(kind, endpoint="generate", leg="decode", after=4, times=1)
        answer = await d.post(CHAT, user("Show me emoji.", stream=True, **QUIET))
        assert answer.text() == "Party 🎉🚀 family 👩‍👩‍👧 flag 🇫🇷 café naïve ✓ done."
        assert d.engines[0].stats.legs["prefill"] == 3
        await d.check_nothing_left()


async def test_a_kv_load_failure_on_decode_begins_anew() -> None:
    async with handoff(num_engines=3, engine={"kv_lease_seconds": 0.2}) as d:  # what was half read waits its lease out
        d.engines[1].faults.set(FaultKind.KV_LOAD, endpoint="generate", leg="decode", times=1)
        answer = await d.post(CHAT, user("Say hello.", stream=True, **QUIET))
        assert answer.text() == HELLO
        await d.check_nothing_left()


async def test_a_clients_own_kv_parameters_are_dropped() -> None:
    """They would kill a decode engine, or read somebody else's cache."""
    async with handoff() as d:
        body = user("Say hello.", **QUIET, kv_transfer_params={"do_remote_prefill": True})
        answer = await d.post(CHAT, body)
        assert (answer.status, answer.text()) == (200, HELLO)
        assert all(engine.is_listening for engine in d.engines)
        await d.check_nothing_left()


async def test_native_requests_are_decoded_alone() -> None:
    async with handoff(has_render=False) as d:
        answer = await d.post(CHAT, user("Say hello.", **QUIET))
        assert answer.status == 200
        assert json.loads(answer.body)["choices"][0]["message"]["content"] == HELLO
        assert d.engines[0].stats.requests["chat"] == 0
        await d.check_nothing_left()
