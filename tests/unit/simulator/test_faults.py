"""Faults, aborts, crash and restart; every test ends with the leak counters at zero."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest

from motor.simulator import ArithmeticScript, EngineSimulator, FaultKind
from motor.simulator.faults import parse_fault

SAMPLING = {"max_tokens": 8}
BROKEN = (aiohttp.ClientError, ConnectionError)


class SteppedClock:
    """A clock whose sleeps end when told: `steps` releases one sleep each, `sleeps` lists what was asked for."""

    def __init__(self) -> None:
        self.steps = asyncio.Semaphore(0)
        self.sleeps: list[float] = []
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def unix_time(self) -> float:
        return 1700000000.0

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        await self.steps.acquire()
        self.time += seconds


class InstantClock(SteppedClock):
    """A clock on which sleeping only moves the hand."""

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.time += seconds
        await asyncio.sleep(0)


def generate(engine: EngineSimulator, client: aiohttp.ClientSession, *, stream: bool, **fields: Any) -> Any:
    body = {"token_ids": [1, 2, 3], "sampling_params": SAMPLING, "stream": stream, **fields}
    return client.post(engine.url + "/inference/v1/generate", json=body)


async def read_events(response: aiohttp.ClientResponse) -> list[str]:
    return [line.decode().strip()[6:] async for line in response.content if line.startswith(b"data: ")]


async def read_into(received: bytearray, request: Any) -> None:
    async with request as response:
        async for part in response.content.iter_any():
            received += part


async def until(client: aiohttp.ClientSession, engine: EngineSimulator, is_true: Callable[[], bool]) -> None:
    """Exchange requests with the engine until a condition holds; the client's timeout and the test's end it."""
    while not is_true():
        async with client.get(engine.url + "/health") as response:
            await response.read()


def assert_nothing_runs(engine: EngineSimulator) -> None:
    stats = engine.stats
    assert (stats.num_running, stats.num_waiting, stats.num_open, engine.num_kv_blocks_held) == (0, 0, 0, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_refuse_resets_before_an_answer_as_often_as_asked(client: aiohttp.ClientSession, stream: bool) -> None:
    async with EngineSimulator() as engine:
        fault = engine.faults.set("refuse", times=1)
        with pytest.raises(BROKEN):
            await generate(engine, client, stream=stream)
        async with generate(engine, client, stream=stream) as response:
            assert response.status == 200
        assert fault.num_hits == 1
        await until(client, engine, lambda: engine.stats.num_open == 0)
        assert_nothing_runs(engine)


async def test_status_answers_with_its_code_and_body(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator() as engine:
        engine.faults.set("status", status=503)
        async with generate(engine, client, stream=True) as response:
            assert (response.status, (await response.json())["error"]["type"]) == (503, "ServiceUnavailableError")
        engine.faults.set("status", status=429, body={"detail": "slow down"})
        async with generate(engine, client, stream=False) as response:
            assert (response.status, await response.json()) == (429, {"detail": "slow down"})


async def test_hang_never_answers_and_ends_with_the_client(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator() as engine:
        engine.faults.set("hang")
        asked = asyncio.ensure_future(generate(engine, client, stream=True).__aenter__())
        await until(client, engine, lambda: engine.stats.num_open == 1)
        assert not asked.done()
        asked.cancel()
        await until(client, engine, lambda: engine.stats.num_open == 0)
        assert engine.stats.num_disconnected == 1
        assert_nothing_runs(engine)


@pytest.mark.parametrize("num_chunks", [0, 3])
async def test_die_resets_after_some_events(client: aiohttp.ClientSession, num_chunks: int) -> None:
    async with EngineSimulator() as engine:
        engine.faults.set("die_after_chunks", after=num_chunks)
        received = bytearray()
        with pytest.raises(BROKEN):
            await read_into(received, generate(engine, client, stream=True))
        assert received.count(b"data: ") <= num_chunks
        await until(client, engine, lambda: engine.stats.num_open == 0)
        assert_nothing_runs(engine)


async def test_eof_ends_cleanly_without_done(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator() as engine:
        engine.faults.set("eof_after_chunks", after=3)
        async with generate(engine, client, stream=True) as response:
            events = await read_events(response)
        assert len(events) == 3
        assert "[DONE]" not in events
        assert_nothing_runs(engine)


async def test_a_malformed_event_stands_between_good_ones(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator() as engine:
        engine.faults.set("malformed_event_after", after=2)
        async with generate(engine, client, stream=True) as response:
            events = await read_events(response)
        with pytest.raises(json.JSONDecodeError):
            json.loads(events[2])
        assert [json.loads(event)["choices"][0]["index"] for event in events[:2] + events[3:-1]] == [0] * 8


async def test_an_error_event_is_followed_by_done_only(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator() as engine:
        engine.faults.set("error_event_after", after=2)
        async with generate(engine, client, stream=True) as response:
            events = await read_events(response)
        error = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
        assert (json.loads(events[2]), events[3:]) == ({"error": error}, ["[DONE]"])
        async with generate(engine, client, stream=False) as response:
            assert (response.status, (await response.json())["error"]) == (500, error)
        assert_nothing_runs(engine)


@pytest.mark.parametrize(
    ("kind", "finish_reason", "stop_reason"), [("finish_with", "stop", "recomputed"), ("abort_after", "abort", None)]
)
async def test_a_generation_can_end_early(
    client: aiohttp.ClientSession, kind: str, finish_reason: str, stop_reason: str | None
) -> None:
    async with EngineSimulator() as engine:
        engine.faults.set(kind, after=3)
        async with generate(engine, client, stream=True) as response:
            events = await read_events(response)
        last = json.loads(events[-2])["choices"][0]
        assert (last["finish_reason"], last["stop_reason"], last["token_ids"]) == (finish_reason, stop_reason, [])
        assert len(events) == 5
        assert engine.stats.finished == {finish_reason: 1}


async def test_faults_strike_their_leg_only(client: aiohttp.ClientSession) -> None:
    prefill = {"kv_transfer_params": {"do_remote_decode": True}, "sampling_params": {"max_tokens": 1}}
    async with EngineSimulator() as engine:
        engine.faults.set("status", status=500, leg="prefill")
        async with generate(engine, client, stream=False) as response:
            assert response.status == 200
        async with generate(engine, client, stream=False, **prefill) as response:
            assert response.status == 500


async def test_faults_over_http(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator() as engine:
        url = engine.url + "/sim/faults"
        async with client.post(url, json=[{"kind": "status", "status": 418, "times": 1}, {"kind": "hang"}]) as response:
            assert [fault["kind"] for fault in (await response.json())["faults"]] == ["status", "hang"]
        async with client.post(url, json={"kind": "explode"}) as response:
            assert response.status == 400
        async with client.delete(url) as response:
            assert (await response.json()) == {"faults": []}
        async with generate(engine, client, stream=False) as response:
            assert response.status == 200


def test_faults_of_the_command_line() -> None:
    fault = parse_fault("status=503,times=2,leg=prefill")
    assert (fault.kind, fault.status, fault.times, fault.leg) == (FaultKind.STATUS, 503, 2, "prefill")
    assert parse_fault("die_after_chunks=3").after == 3
    assert parse_fault("slow=2.5").factor == 2.5
    assert parse_fault("finish_with,after=4").reason == "recomputed"
    for wrong in ("explode", "status=abc", "hang,colour=red", "hang,times"):
        with pytest.raises(ValueError, match=r"."):
            parse_fault(wrong)


async def test_a_client_that_leaves_ends_the_generation(client: aiohttp.ClientSession) -> None:
    clock = SteppedClock()
    async with EngineSimulator(clock=clock, tokens_per_second=10) as engine:
        response = await generate(engine, client, stream=True)
        await response.content.readline()
        assert engine.stats.num_running == 1
        response.close()
        await until(client, engine, lambda: engine.stats.num_open == 0)
        assert engine.stats.num_disconnected == 1
        assert engine.stats.num_generation_tokens == 1
        assert_nothing_runs(engine)


async def test_an_abort_needs_the_prefixed_id_and_ends_with_its_reason(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator(clock=SteppedClock(), first_token_delay_seconds=60) as engine:
        asked = asyncio.ensure_future(generate(engine, client, stream=False, request_id="r1").__aenter__())
        await until(client, engine, lambda: engine.stats.num_running == 1)
        for ids in ("r1", ["generate-tokens-other"]):
            async with client.post(engine.url + "/inference/v1/abort_requests", json={"request_ids": ids}) as response:
                assert (response.status, await response.text()) == (200, "")
        assert engine.stats.num_running == 1
        body = {"request_ids": ["generate-tokens-r1"]}
        async with client.post(engine.url + "/inference/v1/abort_requests", json=body):
            choice = (await (await asked).json())["choices"][0]
        assert (choice["finish_reason"], choice["token_ids"]) == ("abort", [])
        assert_nothing_runs(engine)


async def test_requests_over_the_limit_wait(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator(clock=SteppedClock(), first_token_delay_seconds=1, max_num_seqs=1) as engine:
        asked = [asyncio.ensure_future(generate(engine, client, stream=False).__aenter__()) for _ in range(2)]
        await until(client, engine, lambda: engine.stats.num_waiting == 1)
        async with client.get(engine.url + "/metrics") as response:
            text = await response.text()
        assert 'vllm:num_requests_running{engine="0",model_name="sim"} 1.0' in text
        assert 'vllm:num_requests_waiting{engine="0",model_name="sim"} 1.0' in text
        for task in asked:
            task.cancel()
        await until(client, engine, lambda: engine.stats.num_open == 0)
        assert_nothing_runs(engine)


async def test_tokens_keep_their_pace_and_slow_stretches_it(client: aiohttp.ClientSession) -> None:
    clock = InstantClock()
    settings = {"tokens_per_second": 10, "tokens_per_chunk": (1, 3), "first_token_delay_seconds": 2}
    async with EngineSimulator(clock=clock, **settings) as engine:
        async with generate(engine, client, stream=False):
            assert clock.sleeps == pytest.approx([2, 0.3, 0.1, 0.3])
        clock.sleeps.clear()
        engine.faults.set("slow", factor=10)
        async with generate(engine, client, stream=False):
            assert clock.sleeps == pytest.approx([20, 3, 1, 3])


async def test_a_crash_resets_everything_and_a_restart_takes_the_same_port(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator(clock=SteppedClock(), tokens_per_second=10) as engine:
        port, engine_id = engine.port, engine.core.kv_blocks.engine_id
        response = await generate(engine, client, stream=True)
        await response.content.readline()
        await engine.crash()
        with pytest.raises(BROKEN):
            await response.read()
        with pytest.raises(BROKEN):
            await client.get(engine.url + "/health")
        await engine.restart()
        async with client.get(engine.url + "/health") as response:
            assert response.status == 200
        assert (engine.port, engine.is_listening) == (port, True)
        assert engine.core.kv_blocks.engine_id != engine_id
        await until(client, engine, lambda: engine.stats.num_open == 0)
        assert_nothing_runs(engine)


async def test_the_prefix_cache_is_told_and_spares_prefill_time(client: aiohttp.ClientSession) -> None:
    clock = InstantClock()
    settings = {"cache_blocks": 4, "block_size": 16, "prefill_tokens_per_second": 100}
    async with EngineSimulator(clock=clock, script=ArithmeticScript([7]), **settings) as engine:
        cached = []
        for prompt in (list(range(50)), list(range(50)), [*range(20), 900], list(range(100, 180)), list(range(50))):
            fields = {"token_ids": prompt, "sampling_params": {"max_tokens": 1}}
            async with generate(engine, client, stream=False, **fields) as response:
                cached.append((await response.json())["usage"]["prompt_tokens_details"]["cached_tokens"])
        assert cached == [0, 48, 16, 0, 0]
        assert clock.sleeps == pytest.approx([0.5, 0.02, 0.05, 0.8, 0.5])
