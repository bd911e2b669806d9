"""Whole streams through Render, engine and Derender, all simulated."""

import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from motor.simulator import EngineSimulator, ModelFolder, RenderSimulator, ScriptedAnswers

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


@pytest.fixture
async def render(model: ModelFolder) -> AsyncIterator[RenderSimulator]:
    async with RenderSimulator(model=model, served_model_name="tiny", max_model_len=2048) as simulator:
        yield simulator


@pytest.fixture
async def engine(model: ModelFolder, answers: ScriptedAnswers) -> AsyncIterator[EngineSimulator]:
    settings: dict[str, Any] = {"served_model_name": "tiny", "max_model_len": 2048, "tokens_per_chunk": (1, 2)}
    async with EngineSimulator(model=model, script=answers, **settings) as simulator:
        yield simulator


async def post(client: aiohttp.ClientSession, url: str, body: object) -> tuple[int, Any]:
    async with client.post(url, json=body) as response:
        return response.status, await response.json()


async def streamed_deltas(
    client: aiohttp.ClientSession, render: RenderSimulator, engine: EngineSimulator, chat: dict[str, Any]
) -> list[dict[str, Any]]:
    """Send a chat through render, generate and derender, event by event."""
    chat = {**chat, "stream": True}
    _, request = await post(client, render.url + "/v1/chat/completions/render", chat)
    deltas, state = [], None
    async with client.post(engine.url + "/inference/v1/generate", json=request) as response:
        lines = [line async for line in response.content if line.startswith(b"data: {")]
    for line in lines:
        body = {
            "stream": True,
            "generate_chunk": json.loads(line[6:]),
            "stream_state": state,
            "prompt_token_ids": request["token_ids"],
            "chat_request": chat,
        }
        status, answer = await post(client, render.url + "/v1/chat/completions/derender", body)
        assert status == 200
        state = answer["stream_state"]
        choice = answer["chunk"]["choices"][0]
        deltas.append({**choice["delta"], "finish_reason": choice["finish_reason"]})
    return deltas


async def test_multi_byte_text_streams_whole(
    render: RenderSimulator, engine: EngineSimulator, client: aiohttp.ClientSession
) -> None:
    chat = {
        "messages": [{"role": "user", "content": "Show me emoji."}],
        "chat_template_kwargs": {"enable_thinking": False},
    }
    deltas = await streamed_deltas(client, render, engine, chat)
    contents = [delta["content"] or "" for delta in deltas]
    assert "".join(contents) == "Party 🎉🚀 family 👩‍👩‍👧 flag 🇫🇷 café naïve ✓ done.<|im_end|>"
    assert not any("\ufffd" in content for content in contents)
    assert [delta["role"] for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)


async def test_reasoning_streams_apart(
    render: RenderSimulator, engine: EngineSimulator, client: aiohttp.ClientSession
) -> None:
    chat = {"messages": [{"role": "user", "content": "What is 2+2?"}]}
    deltas = await streamed_deltas(client, render, engine, chat)
    assert "".join(delta["reasoning"] or "" for delta in deltas) == "\nTwo plus two makes four.\n"
    assert "".join(delta["content"] or "" for delta in deltas) == "\n\nThe answer is 4.<|im_end|>"


async def test_tool_calls_stream_with_stable_ids(
    render: RenderSimulator, engine: EngineSimulator, client: aiohttp.ClientSession, model: ModelFolder
) -> None:
    chat = {"messages": [{"role": "user", "content": "Two tools, please."}], "tools": [TOOL]}
    script = engine.core.script
    assert isinstance(script, ScriptedAnswers)
    calls = [
        f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>' for city in "AB"
    ]
    script.add_chat(model, chat["messages"], "\n".join(calls), [TOOL])
    deltas = await streamed_deltas(client, render, engine, chat)
    entries = [entry for delta in deltas for entry in delta.get("tool_calls", ())]
    named = [entry for entry in entries if entry["id"] is not None]
    assert [(entry["index"], entry["type"], entry["function"]["name"]) for entry in named] == [
        (0, "function", "get_weather"),
        (1, "function", "get_weather"),
    ]
    assert len({entry["id"] for entry in named}) == 2
    for index, city in enumerate("AB"):
        parts = [entry["function"]["arguments"] or "" for entry in entries if entry["index"] == index]
        assert json.loads("".join(parts)) == {"city": city}
    assert deltas[-1]["finish_reason"] == "tool_calls"
