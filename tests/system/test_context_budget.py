"""`context_budget_mode`: what the prompt leaves of the context bounds the answer, before any engine is asked."""

import json
from typing import Any

import pytest

from tests.deployment import COMPLETIONS, MODEL, deployment

CONTEXT = 64
PROMPT = list(range(10, 60))
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
ON: dict[str, Any] = {
    "context_budget_mode": "on",
    "model": {"served_model_name": "tiny", "path": str(MODEL), "max_model_len": CONTEXT},
}


def asking(prompt: object, max_tokens: int, stream: bool) -> dict[str, Any]:
    """Return a request whose answer ends by its length alone."""
    body = {"model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": stream}
    return {**body, "stream_options": {"include_usage": True} if stream else None}


@STREAMS
async def test_an_answer_ends_where_the_context_does(stream: bool) -> None:
    async with deployment(**ON) as d:
        answer = await d.post(COMPLETIONS, asking(PROMPT, 500, stream))
        last = answer.events[-2] if stream else answer.json
        assert last["usage"]["completion_tokens"] == CONTEXT - len(PROMPT)
        await d.check_nothing_left()
    async with deployment(model={**ON["model"]}) as d:
        answer = await d.post(COMPLETIONS, asking(PROMPT, 500, stream))
        last = answer.events[-2] if stream else answer.json
        assert last["usage"]["completion_tokens"] == 500  # off: the peers' larger context decides
        await d.check_nothing_left()


@STREAMS
async def test_each_prompt_of_a_list_has_its_own_budget(stream: bool) -> None:
    async with deployment(**ON) as d:
        answer = await d.post(COMPLETIONS, asking([PROMPT, PROMPT[:20]], 500, stream))
        last = answer.events[-2] if stream else answer.json
        assert last["usage"]["completion_tokens"] == (CONTEXT - 50) + (CONTEXT - 20)
        await d.check_nothing_left()


@STREAMS
@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (list(range(70)), "However, your prompt contains 70 input tokens, which exceeds"),
        ("word " * 200, "However, your prompt contains at least 65 input tokens, which exceeds"),
        (list(range(CONTEXT)), "max_tokens must be at least 1, got 0."),
    ],
    ids=["ids", "text", "full"],
)
async def test_a_prompt_without_room_for_an_answer_is_a_400(prompt: object, message: str, stream: bool) -> None:
    async with deployment(**ON) as d:
        answer = await d.post(COMPLETIONS, asking(prompt, 5, stream))
        error = json.loads(answer.body)["error"]
        assert (answer.status, error["code"], error["type"]) == (400, 400, "BadRequestError")
        assert message in error["message"]
        assert d.num_generates == 0
        await d.check_nothing_left()
