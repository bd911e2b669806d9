"""The native text endpoints' shapes, as vLLM 0.32 answers them."""

import json
import re
from typing import Any

import aiohttp
import pytest

from motor.simulator import EngineSimulator, ModelFolder, ScriptedAnswers

CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Show me emoji."}],
    "chat_template_kwargs": {"enable_thinking": False},
}
TEXT = "Party 🎉🚀 family 👩‍👩‍👧 flag 🇫🇷 café naïve ✓ done."
OPENING = (
    '{"id":"chatcmpl-r1","object":"chat.completion.chunk","created":0,"model":"tiny","choices":[{"index":0,'
    '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,'
    '"prompt_text":null}'
)
CONTENT = (
    '{"id":"chatcmpl-r1","object":"chat.completion.chunk","created":0,"model":"tiny","choices":[{"index":0,'
    '"delta":{"content":"Part"},"logprobs":null,"finish_reason":null,"token_ids":null}]}'
)
FINISH = (
    '{"id":"chatcmpl-r1","object":"chat.completion.chunk","created":0,"model":"tiny","choices":[{"index":0,'
    '"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}],'
    '"system_fingerprint":"vllm-0.32.0-simulated"}'
)
COMPLETION_FINISH = (
    '{"id":"cmpl-r1","object":"text_completion","created":0,"model":"tiny","choices":[{"index":0,"text":"",'
    '"logprobs":null,"finish_reason":"stop","stop_reason":1015,"prompt_token_ids":null,"token_ids":null}]}'
)
COMPLETION_USAGE = (
    '{"id":"cmpl-r1","object":"text_completion","created":0,"model":"tiny","choices":[],"usage":{"prompt_tokens":7,'
    '"total_tokens":19,"completion_tokens":12,"prompt_tokens_details":{"cached_tokens":0}},'
    '"system_fingerprint":"vllm-0.32.0-simulated"}'
)


@pytest.fixture
def engine(model: ModelFolder, answers: ScriptedAnswers) -> EngineSimulator:
    return EngineSimulator(model=model, script=answers, served_model_name="tiny", max_model_len=2048)


async def post(client: aiohttp.ClientSession, engine: EngineSimulator, path: str, body: object) -> tuple[int, str]:
    async with client.post(engine.url + path, json=body, headers={"X-Request-Id": "r1"}) as response:
        return response.status, re.sub(r'"created":\d+', '"created":0', await response.text())


def events_of(text: str) -> list[str]:
    events = [event.removeprefix("data: ") for event in text.split("\n\n")]
    assert events[-2:] == ["[DONE]", ""]
    return events[:-2]


async def test_chat_complete(engine: EngineSimulator, client: aiohttp.ClientSession) -> None:
    async with engine:
        status, text = await post(client, engine, "/v1/chat/completions", CHAT)
    answer = json.loads(text)
    assert status == 200
    assert answer["choices"][0] == {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": TEXT,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        },
        "logprobs": None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": None,
        "routed_experts": None,
    }
    counts = {"prompt_tokens": 18, "total_tokens": 73, "completion_tokens": 55}
    assert answer["usage"].items() >= counts.items()
    assert list(answer)[-6:] == [
        "prompt_logprobs",
        "prompt_token_ids",
        "prompt_text",
        "kv_transfer_params",
        "ec_transfer_params",
        "metrics",
    ]


async def test_chat_stream(engine: EngineSimulator, client: aiohttp.ClientSession) -> None:
    async with engine:
        _, text = await post(client, engine, "/v1/chat/completions", {**CHAT, "stream": True})
    events = events_of(text)
    assert (events[0], events[1], events[-1]) == (OPENING, CONTENT, FINISH)
    deltas = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events]
    assert "".join(deltas) == TEXT
    assert not any("\ufffd" in delta for delta in deltas)


async def test_completion_stream(engine: EngineSimulator, client: aiohttp.ClientSession) -> None:
    body = {
        "prompt": "The quick brown fox",
        "max_tokens": 40,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    async with engine:
        _, text = await post(client, engine, "/v1/completions", body)
    events = events_of(text)
    assert events[-2:] == [COMPLETION_FINISH, COMPLETION_USAGE]
    texts = [json.loads(event)["choices"][0]["text"] for event in events[:-1]]
    assert texts[:2] == [" j", "ump"]
    assert "".join(texts) == " jumps over the lazy dog."


async def test_completions_of_many_prompts_and_choices(engine: EngineSimulator, client: aiohttp.ClientSession) -> None:
    body: dict[str, Any] = {"prompt": ["The quick brown fox", "def add(a, b):"], "n": 2, "max_tokens": 40}
    async with engine:
        _, complete = await post(client, engine, "/v1/completions", body)
        _, streamed = await post(client, engine, "/v1/completions", {**body, "stream": True})
    choices = json.loads(complete)["choices"]
    fox, add = " jumps over the lazy dog.", "\n    return a + b"
    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, fox), (1, fox), (2, add), (3, add)]
    texts = dict.fromkeys(range(4), "")
    for event in events_of(streamed):
        choice = json.loads(event)["choices"][0]
        texts[choice["index"]] += choice["text"]
    assert list(texts.values()) == [fox, fox, add, add]


async def test_completions_default_to_16_tokens_and_chat_to_the_context(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator(max_model_len=100) as engine:
        _, completion = await post(client, engine, "/v1/completions", {"prompt": [1, 2, 3]})
        _, chat = await post(client, engine, "/v1/chat/completions", {"messages": []})
    assert json.loads(completion)["usage"]["completion_tokens"] == 16
    assert json.loads(chat)["usage"]["total_tokens"] == 100


async def test_a_stop_string_over_tokens_is_cut_off(engine: EngineSimulator, client: aiohttp.ClientSession) -> None:
    body = {"prompt": "The quick brown fox", "max_tokens": 40, "stop": ["over the"]}
    async with engine:
        _, complete = await post(client, engine, "/v1/completions", body)
        _, streamed = await post(client, engine, "/v1/completions", {**body, "stream": True})
    choice = json.loads(complete)["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (" jumps ", "stop", "over the")
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events_of(streamed)) == " jumps "


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/v1/chat/completions", {"model": "other", "messages": []}, 404, "model"),
        ("/v1/chat/completions", {"model": "tiny"}, 400, "body.messages"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "n": "a"}, 400, "body.n"),
        ("/v1/completions", {"model": "tiny"}, 400, "prompt"),
        ("/v1/completions", {"prompt": []}, 400, "prompt"),
        ("/v1/completions", {"prompt": [1024]}, 400, "token_ids"),
    ],
)
async def test_bad_requests(
    *, engine: EngineSimulator, client: aiohttp.ClientSession, path: str, body: object, status: int, param: str
) -> None:
    async with engine:
        answered, text = await post(client, engine, path, body)
    assert (answered, json.loads(text)["error"]["param"]) == (status, param)


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/generate"])
async def test_other_endpoints_echo(engine: EngineSimulator, client: aiohttp.ClientSession, path: str) -> None:
    async with engine:
        status, text = await post(client, engine, path, {"input": "x"})
    assert (status, json.loads(text)["echo"]) == (200, {"input": "x"})


async def test_facts_about_the_engine(engine: EngineSimulator, client: aiohttp.ClientSession) -> None:
    async with engine:
        async with client.get(engine.url + "/version") as response:
            assert await response.json() == {"version": "0.32.0"}
        async with client.get(engine.url + "/v1/models") as response:
            card = (await response.json())["data"][0]
        await post(client, engine, "/v1/chat/completions", CHAT)
        async with client.get(engine.url + "/metrics") as response:
            metrics = await response.text()
        async with client.get(engine.url + "/sim/stats") as response:
            stats = await response.json()
    assert (card["id"], card["max_model_len"]) == ("tiny", 2048)
    assert 'vllm:request_success_total{engine="0",model_name="tiny",finished_reason="stop"} 1.0' in metrics
    assert 'vllm:generation_tokens_total{engine="0",model_name="tiny"} 55.0' in metrics
    assert (stats["requests"], stats["num_running"], stats["num_kv_blocks_held"]) == ({"chat": 1}, 0, 0)
