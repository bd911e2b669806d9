"""Relay: a broken stream goes on on another engine, the client sees no gap and no duplicate (RFC: 流式 replay)."""

import pytest

from motor.simulator import FaultKind
from tests.deployment import CHAT, COMPLETIONS, deployment
from tests.relayed import REQUESTS, seen_by_client, streamed

BREAKS = pytest.mark.parametrize("kind", [FaultKind.DIE, FaultKind.EOF, FaultKind.ERROR_EVENT, FaultKind.MALFORMED])


@BREAKS
async def test_every_way_of_breaking(kind: FaultKind) -> None:
    async with deployment(num_engines=3) as d:
        expected = seen_by_client(await streamed(d, REQUESTS["multi-byte"]))
        for engine in d.engines[:2]:  # twice in one request
            engine.faults.set(kind, endpoint="generate", after=4, times=1)
        assert seen_by_client(await streamed(d, REQUESTS["multi-byte"])) == expected
        assert d.num_generates == 1 + 3
        await d.check_nothing_left()


async def test_an_engine_out_of_blocks_is_resumed_and_not_blamed() -> None:
    async with deployment(num_engines=1) as d:
        expected = seen_by_client(await streamed(d, REQUESTS["reasoning"]))
        d.engines[0].faults.set(FaultKind.FINISH, endpoint="generate", after=3, times=2)
        assert seen_by_client(await streamed(d, REQUESTS["reasoning"])) == expected
        whole = await d.post(CHAT, REQUESTS["text"])
        d.engines[0].faults.set(FaultKind.FINISH, endpoint="generate", after=3, times=1)
        again = await d.post(CHAT, REQUESTS["text"])
        assert again.json["choices"] == whole.json["choices"]
        assert again.json["usage"] == whole.json["usage"]
        await d.check_nothing_left()


async def test_an_unasked_abort_is_relayed() -> None:
    async with deployment(num_engines=2) as d:
        expected = seen_by_client(await streamed(d, REQUESTS["text"]))
        d.engines[1].faults.set(FaultKind.ABORT, endpoint="generate", after=5, times=1)
        assert seen_by_client(await streamed(d, REQUESTS["text"])) == expected
        await d.check_nothing_left()


@pytest.mark.parametrize("kind", [FaultKind.REFUSE, FaultKind.STATUS])
async def test_a_failure_before_the_first_chunk_is_invisible(kind: FaultKind) -> None:
    async with deployment(num_engines=2) as d:
        for stream in (False, True):
            d.engines[0].faults.set(kind, endpoint="generate", times=1)
            d.engines[1].faults.set(kind, endpoint="generate", times=1)
            answer = await d.post(CHAT, {**REQUESTS["text"], "stream": stream})
            assert (answer.status, answer.text()) == (200, "Hello there! I am a tiny test model.")
        await d.check_nothing_left()


async def test_many_prompts_retry_before_output_and_fail_cleanly_after_it() -> None:
    body = {"model": "tiny", "prompt": ["The quick brown fox", "def add(a, b):"], "max_tokens": 40, "temperature": 0}
    async with deployment(num_engines=2) as d:
        d.engines[0].faults.set(FaultKind.REFUSE, endpoint="generate", times=1)
        answer = await d.post(COMPLETIONS, {**body, "stream": True})
        assert [answer.text(0), answer.text(1)] == [" jumps over the lazy dog.", "\n    return a + b"]
        d.engines[0].faults.set(FaultKind.DIE, endpoint="generate", after=3, times=1)
        answer = await d.post(COMPLETIONS, {**body, "stream": True})
        assert answer.status == 200
        assert "several prompts" in answer.events[-2]["error"]["message"]
        assert answer.events[-1] == "[DONE]"
        await d.check_nothing_left()


async def test_a_structured_answer_is_not_continued() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    async with deployment(num_engines=2) as d:
        for engine in d.engines:
            engine.faults.set(FaultKind.DIE, endpoint="generate", after=3, times=1)
        answer = await streamed(d, {**REQUESTS["text"], "response_format": schema})
        assert "structured output" in answer.events[-2]["error"]["message"]
        await d.check_nothing_left()


async def test_with_all_engines_down_attempts_stay_within_the_budget() -> None:
    relay = {"max_attempts": 3, "retry_reserve": 4, "retry_share": 0.0}
    async with deployment(num_engines=1, relay=relay) as d:
        d.engines[0].faults.set(FaultKind.STATUS, endpoint="generate", status=500)
        for _ in range(10):
            answer = await d.post(CHAT, REQUESTS["text"])
            assert answer.status in (502, 503)
            await d.check_nothing_left()
        assert d.num_generates <= 10 + 4


async def test_a_failing_instance_is_left_alone_and_comes_back() -> None:
    async with deployment(num_engines=2) as d:
        d.engines[0].faults.set(FaultKind.STATUS, endpoint="generate", status=500)
        for _ in range(10):
            assert (await d.post(CHAT, REQUESTS["text"])).status == 200
        assert d.engines[0].stats.requests["generate"] == 3  # then the breaker is open
        await d.check_nothing_left()
