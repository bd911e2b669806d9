"""Prefill and decode where decode must not compute prompts: what prefill can't help with takes the native chain."""

from typing import Any

import pytest

from tests.deployment import CHAT, COMPLETIONS, QUIET, deployment, user

HELLO = "Hello there! I am a tiny test model."


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("mode", ["handoff", "trigger"])
async def test_several_choices_do_not_share_blocks_that_can_be_taken_once(mode: str, stream: bool) -> None:
    settings: dict[str, Any] = {mode: {"allow_decode_alone": False}}
    async with deployment(num_engines=2, roles=["prefill", "decode"], deploy_mode=mode, **settings) as d:
        answer = await d.post(CHAT, user("Say hello.", n=2, temperature=0.5, stream=stream, **QUIET))
        assert (answer.status, answer.headers["x-motor-chain"]) == (200, "native")
        assert [answer.text(0), answer.text(1)] == [HELLO, HELLO]
        assert sum(engine.stats.legs["prefill"] for engine in d.engines) == 0
        await d.check_nothing_left()


async def test_decode_computes_the_prompt_for_its_logprobs() -> None:
    settings: dict[str, Any] = {"handoff": {"allow_decode_alone": False}}
    async with deployment(num_engines=2, roles=["prefill", "decode"], deploy_mode="handoff", **settings) as d:
        body = {"model": "tiny", "prompt": "The quick brown fox", "max_tokens": 40, "temperature": 0}
        answer = await d.post(COMPLETIONS, {**body, "prompt_logprobs": 1})
        assert (answer.status, answer.text()) == (200, " jumps over the lazy dog.")
        assert answer.headers["x-motor-chain"] == "native"
        await d.check_nothing_left()
