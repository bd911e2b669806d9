"""Engines without a tokenizer: what they report differently, and what would kill them."""

import pytest

from tests.deployment import CHAT, COMPLETIONS, QUIET, deployment, user


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_ordinary_ending_has_no_stop_reason(stream: bool) -> None:
    async with deployment(engine={"is_tokens_only": True}) as d:
        answer = await d.post(CHAT, user("Say hello.", stream=stream, **QUIET))
        choice = answer.events[-2]["choices"][0] if stream else answer.json["choices"][0]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", None)
        await d.check_nothing_left()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_id_outside_the_vocabulary_reaches_no_engine(stream: bool) -> None:
    async with deployment(engine={"is_tokens_only": True}) as d:
        answer = await d.post(COMPLETIONS, {"model": "tiny", "prompt": [5, 1024], "stream": stream})
        error = answer.events[0]["error"] if stream else answer.json["error"]
        assert error["message"] == "Token id 1024 is out of vocabulary"
        assert (answer.status, d.num_generates) == (200 if stream else 400, 0)
        assert d.engines[0].is_listening
        await d.check_nothing_left()
