"""The RFC's acceptance list for streams (验收标准: 流式能力), each bullet a test."""

import asyncio
from typing import Any

import pytest

from motor.simulator import FaultKind
from tests.deployment import CHAT, COMPLETIONS, QUIET, deployment, eventually, user
from tests.event_reader import DONE, open_stream
from tests.step_clock import StepClock

PARIS = user("What is the capital of France?", **QUIET)
PARIS_TOKENS = ["The", " capital", " of", " France", " is", " Paris", "."]
ENDLESS: dict[str, Any] = {"model": "tiny", "max_tokens": 1500, "temperature": 0}
NO_RELAY = {"max_attempts": 1}


def chat_text(events: list[Any]) -> str:
    """Return the content that the events show."""
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


async def test_every_engine_chunk_becomes_an_openai_event_at_once() -> None:
    """Streaming Derender 按 Chunk 输出 OpenAI-compatible SSE."""
    clock = StepClock()
    async with deployment(engine={"clock": clock}) as d:
        assert d.render is not None
        num_before = d.render.stats.requests["derender_chat"]
        num_made_before = d.engines[0].stats.num_generation_tokens
        async with open_stream(d, CHAT, PARIS) as stream:
            assert stream.status == 200
            assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert (stream.headers["cache-control"], stream.headers["x-accel-buffering"]) == ("no-cache", "no")
            role, first = await stream.take(2)
            assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
            assert chat_text([first]) == PARIS_TOKENS[0]
            for num_tokens, expected in enumerate(PARIS_TOKENS[1:], 2):
                clock.step()  # the engine makes one more token, and nothing else is needed for its event
                event = await stream.next()
                assert chat_text([event]) == expected
                assert d.render.stats.requests["derender_chat"] == num_before + num_tokens
                assert d.engines[0].stats.num_generation_tokens == num_made_before + num_tokens
                assert {key: event[key] for key in ("id", "object", "created", "model")} == {
                    "id": role["id"],
                    "object": "chat.completion.chunk",
                    "created": role["created"],
                    "model": "tiny",
                }
            clock.run()
            events = await stream.rest()
        assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == ["stop"]
        assert events[-1] == DONE
        await d.check_nothing_left()


@pytest.mark.parametrize("num_shown", [1, 2, 5])
async def test_a_failed_derender_call_shows_nothing_and_repeats_nothing(num_shown: int) -> None:
    """stream_state 只在 Derender 成功后提交; a failure isn't the engine's and costs no attempt."""
    clock = StepClock()
    async with deployment(num_engines=2, engine={"clock": clock}) as d:
        assert d.render is not None
        async with open_stream(d, CHAT, PARIS) as stream:
            shown = await stream.take(2)
            for _ in range(num_shown - 1):
                clock.step()
                shown.append(await stream.next())
            fault = d.render.faults.set(FaultKind.STATUS, endpoint="derender", status=500)
            clock.step()
            failure, done = await stream.take(2)
            assert await stream.next() is None
        assert chat_text(shown) == "".join(PARIS_TOKENS[:num_shown])
        assert failure["error"]["code"] == 502
        assert done == DONE
        assert fault.num_hits == 1
        await d.check_nothing_left()
        assert d.num_generates == 1
        assert sum(engine.stats.num_disconnected for engine in d.engines) == 1  # cancelled, long before its end
        assert not any(engine.stats.finished["stop"] for engine in d.engines)
        assert b'motor_faults_total{domain="derender",kind="unavailable"} 1.0' in d.built.metrics.render()[0]


async def test_an_attempt_that_showed_nothing_is_rolled_back() -> None:
    """stream_state 支持 attempt 回滚和恢复: the second attempt's state starts where the first one's did."""
    async with deployment(num_engines=2) as d:
        # The first chunk is half a character: it is derendered, and shows nothing.
        body = user("Show me emoji.", **QUIET)
        expected = await d.post(CHAT, body)
        for engine in d.engines:
            engine.faults.set(FaultKind.DIE, endpoint="generate", after=1, times=1)
        answer = await d.post(CHAT, {**body, "stream": True, "stream_options": {"include_usage": True}})
        assert answer.text() == expected.text()
        assert answer.events[-2]["usage"]["completion_tokens"] == expected.json["usage"]["completion_tokens"]
        await d.check_nothing_left()


async def test_many_prompts_have_their_indices_one_usage_and_one_done() -> None:
    """多 prompt 正确处理 choice index, Usage 和唯一 [DONE]."""
    prompts = ["The quick brown fox", "def add(a, b):", "Emoji test:"]
    texts = [" jumps over the lazy dog.", "\n    return a + b", " 🎉🚀 你好 done."]
    body = {"model": "tiny", "prompt": prompts, "n": 2, "max_tokens": 40, "temperature": 0.5}
    async with deployment(num_engines=2) as d:
        whole = await d.post(COMPLETIONS, body)
        options = {"include_usage": True, "continuous_usage_stats": True}
        answer = await d.post(COMPLETIONS, {**body, "stream": True, "stream_options": options})
        *events, usage, done = answer.events
        assert [answer.text(index) for index in range(6)] == [text for text in texts for _ in range(2)]
        assert [whole.text(index) for index in range(6)] == [text for text in texts for _ in range(2)]
        finished = [c["index"] for e in events for c in e["choices"] if c["finish_reason"] is not None]
        assert sorted(finished) == [0, 1, 2, 3, 4, 5]
        assert all(len(event["choices"]) == 1 for event in events)
        assert (done, answer.events.count(DONE)) == (DONE, 1)
        assert usage["choices"] == []
        counts = ("prompt_tokens", "completion_tokens", "total_tokens")
        assert [usage["usage"][name] for name in counts] == [whole.json["usage"][name] for name in counts]
        last_of = {event["choices"][0]["index"]: event["usage"]["completion_tokens"] for event in events}
        assert sum(last_of.values()) == usage["usage"]["completion_tokens"]
        await d.check_nothing_left()


async def test_headers_leave_only_when_every_stream_is_ready() -> None:
    """Handoff 和 Union 支持多 prompt 流式 fan-out/merge: half a batch never looks like a success."""
    async with deployment(num_engines=2, relay=NO_RELAY) as d:
        d.engines[1].faults.set(FaultKind.HANG, endpoint="generate")
        body = {**ENDLESS, "prompt": ["one", "two"], "stream": True}
        asking = asyncio.create_task(d.post(COMPLETIONS, body))
        await eventually(lambda: d.engines[0].stats.num_generation_tokens > 0, "the first prompt is under way")
        await eventually(lambda: d.engines[1].stats.num_open == 1, "the second one hangs")
        assert not asking.done()
        await d.engines[1].crash()
        answer = await asking
        assert (answer.status, answer.json["error"]["code"]) == (502, 502)
        assert answer.headers["content-type"] == "application/json"
        await d.check_nothing_left()
        assert d.engines[0].stats.num_disconnected == 1


async def test_a_refused_sibling_is_a_real_status() -> None:
    async with deployment(num_engines=2, relay=NO_RELAY) as d:
        d.engines[1].faults.set(FaultKind.STATUS, endpoint="generate", status=400)
        answer = await d.post(COMPLETIONS, {**ENDLESS, "prompt": ["one", "two", "three"], "stream": True})
        assert (answer.status, answer.json["error"]["message"]) == (400, "Simulated fault")
        await d.check_nothing_left()


async def test_a_failing_sibling_cancels_and_awaits_all_producers() -> None:
    """客户端断开或单路失败时能够取消并等待所有关联 producer: 单路失败."""
    async with deployment(num_engines=3, relay=NO_RELAY) as d:
        d.engines[1].faults.set(FaultKind.DIE, endpoint="generate", after=3)
        answer = await d.post(COMPLETIONS, {**ENDLESS, "prompt": ["one", "two", "three"], "stream": True})
        assert answer.status == 200
        assert answer.events[-2]["error"]["code"] == 502
        assert answer.events[-1] == DONE
        # The answer has ended: our own side must be empty by now, the engines notice a moment later.
        assert not any(d.built.leftovers().values())
        await d.check_nothing_left()
        assert [engine.stats.num_disconnected for engine in d.engines if engine is not d.engines[1]] == [1, 1]


async def test_a_disconnect_cancels_and_awaits_all_producers() -> None:
    """客户端断开或单路失败时能够取消并等待所有关联 producer: 客户端断开."""
    async with deployment(num_engines=3) as d:
        async with open_stream(d, COMPLETIONS, {**ENDLESS, "prompt": ["one", "two", "three"], "n": 1}) as stream:
            await stream.take(3)
        await d.check_nothing_left()
        assert [engine.stats.num_disconnected for engine in d.engines] == [1, 1, 1]
        assert b"motor_client_disconnects_total 1.0" in d.built.metrics.render()[0]


async def test_a_slow_prompt_does_not_hold_up_another() -> None:
    """Concurrency between prompts: one prompt's events flow while the other one's engine waits."""
    clock = StepClock()
    prompts = ["The quick brown fox", "Once upon a time"]
    async with deployment(engine={"clock": clock, "max_num_seqs": 1}) as d:  # one runs, the other waits
        body = {"model": "tiny", "prompt": prompts, "max_tokens": 40, "temperature": 0}
        async with open_stream(d, COMPLETIONS, body) as stream:
            shown = [await stream.next()]
            for _ in range(3):
                clock.step()
                shown.append(await stream.next())
            assert len({event["choices"][0]["index"] for event in shown}) == 1
            assert d.engines[0].stats.num_waiting == 1
            clock.run()
            events = await stream.rest()
        assert events[-1] == DONE
        await d.check_nothing_left()


async def test_the_stream_is_readable_by_any_sse_client() -> None:
    """Each event is one `data:` line and a blank line; none is empty, none is longer than the JSON that it holds."""
    async with deployment() as d:
        answer = await d.post(CHAT, user("Show me emoji.", stream=True, **QUIET))
        lines = answer.body.split(b"\n")
        assert [line for line in lines[1::2] if line] == []
        assert all(line.startswith((b"data: {", b"data: [DONE]")) for line in lines[0:-1:2])
        await d.check_nothing_left()
