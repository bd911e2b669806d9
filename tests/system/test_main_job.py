"""The main job over simulated peers: what the RFC's acceptance list asks of both kinds of answer (验收标准)."""

import json

import pytest

from tests.deployment import CHAT, COMPLETIONS, MODEL, QUIET, deployment, user

RECORD = json.loads((MODEL / "expected.json").read_text(encoding="utf-8"))
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@STREAMS
@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Say hello.", "Hello there! I am a tiny test model."),
        ("Say hello in Chinese.", "你好,世界!今天天气很好,我们去公园散步吧。"),
        ("Show me emoji.", "Party 🎉🚀 family 👩‍👩‍👧 flag 🇫🇷 café naïve ✓ done."),
    ],
)
async def test_chat(prompt: str, expected: str, stream: bool) -> None:
    async with deployment() as d:
        answer = await d.post(CHAT, user(prompt, stream=stream, **QUIET))
        assert answer.status == 200
        assert answer.text() == expected
        assert answer.headers["x-motor-chain"] == "token"
        assert d.num_generates == 1
        await d.check_nothing_left()


@STREAMS
async def test_reasoning_and_tool_calls_are_split(stream: bool) -> None:
    body = user("What is the weather in Paris?", tools=RECORD["tools"], stream=stream)
    async with deployment() as d:
        answer = await d.post(CHAT, body)
        if stream:
            deltas = [event["choices"][0]["delta"] for event in answer.events[:-1]]
            calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
            names = [call["function"]["name"] for call in calls if call["function"].get("name")]
            arguments = "".join(call["function"].get("arguments") or "" for call in calls)
            finish = [event["choices"][0]["finish_reason"] for event in answer.events[:-1]][-1]
        else:
            [choice] = answer.json["choices"]
            names = [call["function"]["name"] for call in choice["message"]["tool_calls"]]
            arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
            finish = choice["finish_reason"]
        assert names == ["get_weather"]
        assert json.loads(arguments) == {"city": "Paris"}
        assert finish == "tool_calls"
        await d.check_nothing_left()


@STREAMS
async def test_many_prompts_and_choices(stream: bool) -> None:
    prompts = ["The quick brown fox", "def add(a, b):", "Emoji test:"]
    body = {"model": "tiny", "prompt": prompts, "n": 2, "max_tokens": 40, "stream": stream, "temperature": 0.5}
    body["stream_options"] = {"include_usage": True} if stream else None
    async with deployment() as d:
        answer = await d.post(COMPLETIONS, body)
        texts = [answer.text(index) for index in range(6)]
        assert texts[0] == texts[1] == " jumps over the lazy dog."
        assert texts[2] == texts[3] == "\n    return a + b"
        assert d.num_generates == 3
        if stream:
            assert answer.events.count("[DONE]") == 1
            assert answer.events[-1] == "[DONE]"
            usages = [event["usage"] for event in answer.events[:-1] if event.get("usage")]
            finished = [c["index"] for e in answer.events[:-1] for c in e["choices"] if c["finish_reason"]]
            assert sorted(finished) == [0, 1, 2, 3, 4, 5]
        else:
            usages = [answer.json["usage"]]
            assert [choice["index"] for choice in answer.json["choices"]] == [0, 1, 2, 3, 4, 5]
        [usage] = usages
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        await d.check_nothing_left()


@STREAMS
async def test_sixteen_tokens_stay_sixteen(stream: bool) -> None:
    """Render leaves out a `max_tokens` of 16, and generate reads that as the rest of the context."""
    async with deployment() as d:
        body = user("Tell me a long story.", max_tokens=16, stream=stream, **QUIET)
        body["stream_options"] = {"include_usage": True} if stream else None
        answer = await d.post(CHAT, body)
        last = answer.events[-2] if stream else answer.json
        assert last["usage"]["completion_tokens"] == 16
        await d.check_nothing_left()


async def test_without_render_bytes_go_through_unchanged() -> None:
    async with deployment(has_render=False) as d:
        body = user("Say hello.", **QUIET)
        ours = await d.post(CHAT, body, {"X-Request-Id": "same"})
        headers = {"X-Request-Id": "same"}
        async with d.http.post(d.engines[0].url + CHAT, json=body, headers=headers) as response:
            native = await response.json()
        assert ours.headers["x-motor-chain"] == "native"
        assert {**ours.json, "created": 0} == {**native, "created": 0}
        assert d.num_generates == 0
        await d.check_nothing_left()


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/generate"])
async def test_other_apis_never_try_render(path: str) -> None:
    async with deployment() as d:
        answer = await d.post(path, {"model": "tiny", "input": "hi", "messages": []})
        assert answer.status == 200
        assert answer.headers["x-motor-chain"] == "native"
        assert d.render is not None
        assert d.render.stats.num_renders == 0
        await d.check_nothing_left()


async def test_no_engine_is_a_clear_503() -> None:
    async with deployment(num_engines=0) as d:
        answer = await d.post(CHAT, user("Say hello."))
        assert answer.status == 503
        assert answer.json["error"]["message"] == "no union instance is available"
        ready = await d.get(d.url + "/ready")
        assert (ready.status, ready.json["reasons"]) == (503, ["no instance is configured"])
        await d.check_nothing_left()


async def test_an_operator_sees_where_the_time_went() -> None:
    async with deployment() as d:
        await d.post(CHAT, user("Say hello.", stream=True), {"X-Request-Id": "slow-one"})
        times = (await d.get(d.management_url + "/debug/request-timing?request_id=slow-one")).json
        assert {"render_ms", "first_chunk_ms", "derender_ms", "total_ms"} <= times.keys()
        metrics = (await d.get(d.management_url + "/metrics")).body.decode()
        assert 'motor_requests_total{api="chat",chain="token",status="200"} 1.0' in metrics
        assert (await d.get(d.url + "/health")).status == 200
        assert (await d.get(d.url + "/ready")).status == 200
        assert [m["id"] for m in (await d.get(d.url + "/v1/models")).json["data"]] == ["tiny"]
        await d.check_nothing_left()
