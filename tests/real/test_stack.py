"""The test bed itself: the tiny model answers through native vLLM as its own record says."""

import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.real.stack import MODEL, RealStack

RECORD = json.loads((MODEL / "expected.json").read_text(encoding="utf-8"))
CHOSEN_PROMPTS = (
    "Say hello.",
    "Say hello in Chinese.",
    "Show me emoji.",
    "Tell me a long story.",
    "What is 2+2?",
    "What is the weather in Paris?",
    "Compare the weather in Paris and Tokyo.",
)


def chosen_cases() -> Iterator[Any]:
    """Yield single-turn chat cases, one of each kind; plain ones with thinking off, else all of it is reasoning."""
    for case in RECORD["cases"]:
        if case["kind"] != "chat" or len(case["messages"]) > 1:
            continue
        prompt = case["messages"][0]["content"]
        thinks_as_recorded = case["raw"].startswith("<think>") or "chat_template_kwargs" in case or "tools" in case
        if prompt in CHOSEN_PROMPTS and thinks_as_recorded:
            yield pytest.param(case, id=f"{prompt}{'' if 'chat_template_kwargs' not in case else ' (no thinking)'}")


def expected_message(raw: str) -> tuple[str, str, list[dict[str, Any]]]:
    """Split a recorded raw text into reasoning, content and tool calls."""
    thought, _, said = raw.rpartition("</think>")
    text, *calls = said.split("<tool_call>")
    parsed = [json.loads(call.partition("</tool_call>")[0]) for call in calls]
    return thought.removeprefix("<think>").strip(), text.strip(), parsed


@pytest.mark.parametrize("case", list(chosen_cases()))
async def test_native_vllm_gives_the_recorded_answer(real_stack: RealStack, case: dict[str, Any]) -> None:
    extra = {key: case[key] for key in ("tools", "chat_template_kwargs") if key in case}
    if "tools" in case:
        extra["chat_template_kwargs"] = {"enable_thinking": False} if not case["raw"].startswith("<think>") else {}
    body = {"model": real_stack.model_name, "messages": case["messages"], "temperature": 0, "max_tokens": 600, **extra}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{real_stack.engine}/v1/chat/completions", json=body) as answer,
    ):
        answered = await answer.json()
        assert answer.status == 200, answered
    message = answered["choices"][0]["message"]
    calls = [
        {"name": call["function"]["name"], "arguments": json.loads(call["function"]["arguments"])}
        for call in message.get("tool_calls") or ()
    ]
    got = ((message.get("reasoning") or "").strip(), (message.get("content") or "").strip(), calls)
    assert got == expected_message(case["raw"])


async def test_token_chain_gives_the_recorded_tokens(real_stack: RealStack) -> None:
    case = next(case for case in RECORD["cases"] if case["kind"] == "completion")
    body = {"model": real_stack.model_name, "prompt": case["prompt"], "temperature": 0, "max_tokens": 100}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{real_stack.render}/v1/completions/render", json=body) as answer:
            (rendered,) = await answer.json()
        choices = []
        for engine in (real_stack.engine, real_stack.tokens_engine):
            async with session.post(f"{engine}/inference/v1/generate", json=rendered) as answer:
                choices.append((await answer.json())["choices"][0]["token_ids"])
    assert choices[0] == choices[1]
    assert len(choices[0]) > 5


async def test_metrics_and_idleness(real_stack: RealStack) -> None:
    await real_stack.wait_until_idle(real_stack.engine)
    assert await real_stack.metric(real_stack.engine, "num_requests_running") == 0
    with pytest.raises(LookupError, match="no_such_metric"):
        await real_stack.metric(real_stack.engine, "no_such_metric")
