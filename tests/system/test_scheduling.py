"""Which engine a request goes to, through the whole Coordinator (RFC: Router、Scheduler 和 KV Conductor)."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from motor.simulator.conductor import ConductorSimulator
from tests.deployment import CHAT, COMPLETIONS, Deployment, deployment, eventually, user
from tests.event_reader import open_stream

BLOCK = 16
CACHED = {"cache_blocks": 4096, "publishes_kv_events": True, "max_model_len": 8192}
AFFINITY = {"scheduling": {"policy": "kv_cache_affinity", "instance_header": True}}
PREFIXES = [[100 + number] * (BLOCK * 20) for number in range(8)]


def completion(prefix: list[int], tail: int, **fields: Any) -> dict[str, Any]:
    """Return a request for a prompt of ids: a prefix and a little more."""
    return {"model": "tiny", "prompt": [*prefix, *[tail] * 20], "max_tokens": 2, **fields}


def num_indexed(d: Deployment) -> float:
    """Return how many blocks the embedded conductor knows."""
    lines = d.built.metrics.render()[0].decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith("motor_kv_index_blocks "))


async def ask(d: Deployment, body: dict[str, Any]) -> tuple[str, int]:
    """Send a request; return the instance and the cached tokens."""
    answer = await d.post(COMPLETIONS, body)
    assert answer.status == 200, answer.body
    details = answer.json["usage"]["prompt_tokens_details"]
    return answer.headers["x-motor-instance"], (details or {}).get("cached_tokens") or 0


async def events_arrive(d: Deployment) -> None:
    """Wait until the index has every block that engines hold."""
    num_blocks = sum(engine.core.prefix_cache.num_blocks for engine in d.engines)
    await eventually(lambda: num_indexed(d) == num_blocks, f"{num_blocks} blocks are indexed")


async def until_followed(d: Deployment) -> None:
    """Wait until the Coordinator has subscribed to every engine's events; earlier ones would be lost."""
    await asyncio.gather(*(engine.kv_events.wait_for_subscriber() for engine in d.engines))


async def test_a_prefix_goes_where_it_is_cached() -> None:
    async with deployment(num_engines=4, engine=CACHED, render={"max_model_len": 8192}, **AFFINITY) as d:
        await until_followed(d)
        first = {}
        for number, prefix in enumerate(PREFIXES):
            first[number], num_cached = await ask(d, completion(prefix, 7))
            assert num_cached == 0
        await events_arrive(d)
        assert set(first.values()) == {"e0", "e1", "e2", "e3"}
        for number, prefix in reversed(list(enumerate(PREFIXES))):
            assert await ask(d, completion(prefix, 8)) == (first[number], BLOCK * 20)
        await d.check_nothing_left()


async def test_a_burst_with_one_prefix_lands_together() -> None:
    """Before any event: the prompt just routed counts as cached."""
    async with deployment(num_engines=4, engine=CACHED, render={"max_model_len": 8192}, **AFFINITY) as d:
        await until_followed(d)
        warm, _ = await ask(d, completion(PREFIXES[0], 1))  # tells the block size
        await events_arrive(d)
        for engine in d.engines:
            engine.kv_events.is_muted = True
        found = {(await ask(d, completion(PREFIXES[1], tail)))[0] for tail in range(5)}
        assert len(found) == 1
        assert found != {warm}
        await d.check_nothing_left()


async def until_running(d: Deployment, num_requests: int) -> None:
    await eventually(lambda: sum(engine.stats.num_running for engine in d.engines) == num_requests, "they run")


async def test_a_hot_prefix_spills_to_an_idle_engine() -> None:
    """320 tokens are cached, 100 are new, 2 are expected: each request makes the next one's way 100 + 42.2 longer.

    The fourth would wait for 3 x 142.2 and compute 100; the idle engine's 420 are less.
    """
    slow = {**CACHED, "prefill_tokens_per_second": 2000.0}
    async with deployment(num_engines=2, engine=slow, render={"max_model_len": 8192}, **AFFINITY) as d:
        await until_followed(d)
        where, _ = await ask(d, completion(PREFIXES[0], 3))
        hot = int(where[1:])
        await events_arrive(d)
        for engine in d.engines:
            engine.faults.set("slow", factor=1000)
        async with AsyncExitStack() as clients:
            for number, expected in enumerate([(1, 0), (2, 0), (3, 0), (3, 1)]):
                body = {**completion([], 0), "prompt": [*PREFIXES[0], *[200 + number] * 100]}
                task = asyncio.create_task(d.post(COMPLETIONS, body))
                clients.callback(task.cancel)
                await until_running(d, number + 1)
                assert (d.engines[hot].stats.num_running, d.engines[1 - hot].stats.num_running) == expected
        await d.check_nothing_left()


async def test_an_engine_that_comes_back_empty_is_known_to_be() -> None:
    async with deployment(num_engines=2, engine=CACHED, render={"max_model_len": 8192}, **AFFINITY) as d:
        await until_followed(d)
        where, _ = await ask(d, completion(PREFIXES[0], 1))
        await events_arrive(d)
        engine = d.engines[int(where[1:])]
        await engine.crash()
        await engine.restart()
        await engine.kv_events.wait_for_subscriber()
        await eventually(lambda: num_indexed(d) == 0, "the index has forgotten it")
        assert (await ask(d, completion(PREFIXES[0], 2)))[1] == 0
        await events_arrive(d)
        assert (await ask(d, completion(PREFIXES[0], 3)))[1] == BLOCK * 20
        await d.check_nothing_left()


@pytest.mark.parametrize("fault", ["absent", "hanging", "failing", "garbage"])
async def test_a_dead_conductor_costs_no_request(fault: str) -> None:
    async with ConductorSimulator() as conductor:
        external = {"mode": "external", "url": conductor.url, "timeout_ms": 50, "block_size": BLOCK}
        async with deployment(num_engines=2, engine=CACHED, kv_conductor=external, **AFFINITY) as d:
            await eventually(lambda: len(conductor.registrations) == 2, "both engines are registered")
            conductor.matches = {"vllm-union-e1": {0: 64}}
            body = user("Say hello.", max_tokens=2)
            assert {(await d.post(CHAT, body)).headers["x-motor-instance"] for _ in range(3)} == {"e1"}
            match fault:
                case "absent":
                    await conductor.server.stop()
                case "hanging":
                    conductor.is_hanging = True
                case "failing":
                    conductor.status = 500
                case "garbage":
                    conductor.body = b'{"default": [1'
            assert {(await d.post(CHAT, body)).headers["x-motor-instance"] for _ in range(4)} == {"e0", "e1"}
            counted = (await d.get(d.management_url + "/metrics")).body.decode()
            assert "motor_kv_query_unanswered_total{" in counted
            await d.check_nothing_left()


async def test_operators_are_told_why() -> None:
    async with deployment(num_engines=2, engine=CACHED, **AFFINITY) as d:
        await until_followed(d)
        await d.post(CHAT, user("Say hello."))
        await events_arrive(d)
        answer = await d.post(CHAT, user("Say hello.", max_tokens=3), headers={"x-request-id": "mine"})
        told = (await d.get(d.management_url + "/debug/schedule?request_id=mine")).json
        assert told == (await d.get(d.management_url + f"/debug/schedule?request_id={answer.json['id']}")).json
        (decision,) = told["decisions"]
        assert decision["policy"] == "kv_cache_affinity"
        assert decision["chosen"]["instance"] == answer.headers["x-motor-instance"]
        assert decision["expected_output_tokens"] == 3
        assert decision["prompt_tokens"] == answer.json["usage"]["prompt_tokens"]
        by_name = {one["instance"]: one for one in decision["candidates"]}
        assert by_name[decision["chosen"]["instance"]]["score"] == 1
        assert {one["requests"] for one in by_name.values()} == {0}
        assert (await d.get(d.management_url + "/debug/schedule?request_id=other")).status == 404
        await d.check_nothing_left()


async def test_a_rank_is_chosen_and_told() -> None:
    async with deployment(instances=[], scheduling={"instance_header": True}) as probe:
        url = probe.engines[0].url
        instances = [{"id": "dp", "role": "union", "url": url, "data_parallel_size": 3}]
        async with deployment(num_engines=0, instances=instances) as d:
            for _ in range(4):
                assert (await d.post(CHAT, user("Say hello."))).status == 200
            await d.check_nothing_left()
        assert probe.engines[0].stats.ranks == {"0": 2, "1": 1, "2": 1}


@pytest.mark.parametrize("has_render", [True, False], ids=["token", "native"])
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "streamed"])
async def test_the_instance_is_shown_only_when_asked_for(has_render: bool, is_stream: bool) -> None:
    body = user("Say hello.", stream=is_stream)
    async with deployment(has_render=has_render) as d:
        assert "x-motor-instance" not in (await d.post(CHAT, body)).headers
    async with deployment(has_render=has_render, scheduling={"instance_header": True}) as d:
        assert (await d.post(CHAT, body)).headers["x-motor-instance"] == "e0"
        await d.check_nothing_left()


async def test_load_balance_sends_work_to_who_has_least() -> None:
    slow = {"tokens_per_second": 20.0, "max_model_len": 8192}
    async with deployment(num_engines=2, engine=slow, render={"max_model_len": 8192}) as d:
        long = completion(PREFIXES[0], 1, stream=True, max_tokens=2000)
        async with open_stream(d, COMPLETIONS, long) as stream:
            await stream.next()
            busy = next(number for number, engine in enumerate(d.engines) if engine.stats.num_running)
            for _ in range(4):
                assert (await d.post(CHAT, user("Say hello.", max_tokens=2))).status == 200
            assert d.engines[busy].stats.requests["generate"] == 1
            assert d.engines[1 - busy].stats.requests["generate"] == 4
        await d.check_nothing_left()
