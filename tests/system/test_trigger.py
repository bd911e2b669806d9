"""Trigger over simulated engines: decode calls the metaserver, which runs prefill; a failed side ends the other."""

import asyncio
from typing import Any

import pytest

from motor.simulator import FaultKind
from tests.deployment import CHAT, COMPLETIONS, QUIET, Deployment, deployment, eventually, user

STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
HELLO = "Hello there! I am a tiny test model."


def trigger(**settings: Any) -> Any:
    settings.setdefault("num_engines", 2)
    roles = ["prefill", *["decode"] * (settings["num_engines"] - 1)]
    return deployment(roles=roles, deploy_mode="trigger", **settings)


def legs(d: Deployment) -> list[dict[str, int]]:
    return [dict(engine.stats.legs) for engine in d.engines]


@STREAMS
async def test_decode_calls_for_its_prefill(stream: bool) -> None:
    async with trigger() as d:
        answer = await d.post(CHAT, user("Say hello.", stream=stream, **QUIET))
        assert (answer.status, answer.text()) == (200, HELLO)
        assert legs(d) == [{"prefill": 1}, {"decode": 1}]
        await d.check_nothing_left()


async def test_prompt_lists_whole_go_by_tokens_and_streamed_natively() -> None:
    body = {"model": "tiny", "prompt": ["The quick brown fox", "def add(a, b):"], "max_tokens": 40, "temperature": 0}
    async with trigger() as d:
        whole = await d.post(COMPLETIONS, body)
        assert [whole.text(0), whole.text(1)] == [" jumps over the lazy dog.", "\n    return a + b"]
        assert whole.headers["x-motor-chain"] == "token"
        streamed = await d.post(COMPLETIONS, {**body, "stream": True})
        assert [streamed.text(0), streamed.text(1)] == [" jumps over the lazy dog.", "\n    return a + b"]
        assert streamed.headers["x-motor-chain"] == "native"
        await d.check_nothing_left()


@STREAMS
async def test_a_failed_prefill_ends_its_decode_and_both_are_tried_again(stream: bool) -> None:
    async with trigger(num_engines=3) as d:
        d.engines[0].faults.set(FaultKind.STATUS, endpoint="generate", leg="prefill", status=500, times=1)
        answer = await d.post(CHAT, user("Say hello.", stream=stream, **QUIET))
        assert (answer.status, answer.text()) == (200, HELLO)
        assert d.engines[0].stats.legs["prefill"] == 2
        await d.check_nothing_left()


async def test_a_decode_that_breaks_is_relayed() -> None:
    async with trigger(num_engines=3) as d:
        for decode in d.engines[1:]:
            decode.faults.set(FaultKind.DIE, endpoint="generate", leg="decode", after=3, times=1)
        answer = await d.post(CHAT, user("Show me emoji.", stream=True, **QUIET))
        assert answer.text() == "Party 🎉🚀 family 👩‍👩‍👧 flag 🇫🇷 café naïve ✓ done."
        await d.check_nothing_left()


async def test_a_client_that_leaves_ends_both_legs() -> None:
    async with trigger() as d:
        d.engines[0].faults.set(FaultKind.HANG, endpoint="generate", leg="prefill", times=1)
        asking = asyncio.create_task(d.post(CHAT, user("Say hello.", **QUIET)))
        await eventually(lambda: d.engines[0].stats.num_open == 1, "prefill runs")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await d.check_nothing_left()


async def test_strangers_are_not_served() -> None:
    async with trigger() as d:
        assert d.built.metaserver is not None
        url = d.built.metaserver.base_url
        await d.post(CHAT, user("Say hello.", **QUIET))
        for token in ("guess", "..%2f", "x" * 500):
            async with d.http.post(f"{url}/v1/metaserver/{token}", json={"do_remote_decode": True}) as response:
                assert response.status == 404
        async with d.http.post(f"{url}/v1/metaserver/guess", data=b"[1]") as response:
            assert response.status == 400
        assert d.engines[0].stats.legs["prefill"] == 1
        await d.check_nothing_left()


async def test_without_prefill_decode_serves_alone() -> None:
    async with trigger() as d:
        d.engines[0].faults.set(FaultKind.STATUS, endpoint="generate", status=500)
        for _ in range(4):
            assert (await d.post(CHAT, user("Say hello.", **QUIET))).text() == HELLO
        await d.check_nothing_left()
