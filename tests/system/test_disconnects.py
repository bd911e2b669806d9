"""A client that leaves, at every point where the pipeline waits: nothing stays behind, on our side or on the peers'."""

import asyncio
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from motor.simulator import FaultKind
from tests.deployment import CHAT, COMPLETIONS, QUIET, Deployment, deployment, eventually, user
from tests.event_reader import open_stream
from tests.raw_client import raw_client
from tests.step_clock import StepClock

BODY = user("Tell me a long story.", **QUIET)
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def is_rendering(d: Deployment) -> bool:
    return d.render is not None and d.render.stats.num_renders == 1 and d.render.stats.num_in_flight == 1


def is_derendering(d: Deployment) -> bool:
    return d.render is not None and d.num_generates == 1 and d.render.stats.num_in_flight == 1


def is_open(d: Deployment) -> bool:
    return d.engines[0].stats.num_open == 1


def is_running(d: Deployment) -> bool:
    return d.engines[0].stats.num_running == 1


def is_queued(d: Deployment) -> bool:
    return d.engines[0].stats.num_waiting == 1


def num_tasks() -> int:
    """Return how many tasks run the Coordinator's own code."""
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return sum("/motor/coordinator/" in one.cr_code.co_filename for one in coroutines if inspect.iscoroutine(one))


@dataclass(frozen=True)
class Point:
    """A point of waiting.

    Attributes:
        is_reached: Whether the request is there.
        sidecar: What goes wrong on the sidecar: kind and endpoint.
        engine: What goes wrong on the engine.
        settings: Of the engine.
        holds_time: Whether the engine's time stands still.
    """

    is_reached: Callable[[Deployment], bool]
    sidecar: tuple[FaultKind, str] | None = None
    engine: FaultKind | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    holds_time: bool = True


POINTS = {
    "render": Point(is_rendering, sidecar=(FaultKind.HANG, "render")),
    "before the engine's head": Point(is_open, engine=FaultKind.HANG),
    "before the first chunk": Point(is_running, settings={"first_token_delay_seconds": 1}),
    "between chunks": Point(is_running),
    "derender": Point(is_derendering, sidecar=(FaultKind.HANG, "derender"), holds_time=False),
}


@STREAMS
@pytest.mark.parametrize("name", POINTS)
async def test_a_client_leaves(name: str, stream: bool) -> None:
    point = POINTS[name]
    clock = StepClock()
    clock.run()  # while the Coordinator gets to know its peers
    async with deployment(engine={"clock": clock, **point.settings}, render_config={"timeout_ms": 60_000}) as d:
        assert d.render is not None
        await d.check_nothing_left()
        num_tasks_before = num_tasks()
        if point.holds_time:
            clock.hold()
        if point.sidecar is not None:
            d.render.faults.set(point.sidecar[0], endpoint=point.sidecar[1])
        if point.engine is not None:
            d.engines[0].faults.set(point.engine, endpoint="generate")
        asking = asyncio.create_task(d.post(CHAT, {**BODY, "stream": stream}))
        await eventually(lambda: point.is_reached(d), name)
        asking.cancel()
        await d.check_nothing_left()
        assert num_tasks() == num_tasks_before
        assert b"motor_client_disconnects_total 1.0" in d.built.metrics.render()[0]
        assert b'status="499"' in d.built.metrics.render()[0]


async def test_a_client_leaves_while_it_waits_for_a_place() -> None:
    async with deployment(engine={"clock": StepClock(), "max_num_seqs": 1}) as d:
        async with open_stream(d, CHAT, BODY) as stream:
            await stream.take(2)
            asking = asyncio.create_task(d.post(CHAT, {**BODY, "stream": True}))
            await eventually(lambda: is_queued(d), "the second one waits")
            asking.cancel()
            await eventually(lambda: d.engines[0].stats.num_waiting == 0, "its place in the queue is free")
            assert d.engines[0].stats.num_running == 1  # the first one is not concerned
        await d.check_nothing_left()


@pytest.mark.parametrize("num_sent", [0, 1, 20])
async def test_a_client_leaves_before_its_request_is_complete(num_sent: int) -> None:
    payload = json.dumps(BODY).encode()
    async with deployment() as d:
        async with raw_client(d.url) as client:
            client.head("POST", CHAT, {"Content-Type": "application/json", "Content-Length": str(len(payload))})
            client.writer.write(payload[:num_sent])
            await eventually(lambda: d.built.metrics.num_requests_in_flight == 1, "the request has begun")
        await d.check_nothing_left()
        assert d.render is not None
        assert d.render.stats.num_renders == 0
        assert d.num_generates == 0


@pytest.mark.parametrize("num_read", [1, 2, 3, 7])
async def test_a_client_leaves_in_mid_stream(num_read: int) -> None:
    clock = StepClock()
    async with deployment(engine={"clock": clock}) as d:
        async with open_stream(d, CHAT, BODY) as stream:
            for _ in range(num_read):
                assert await stream.next() is not None
                clock.step()
        await d.check_nothing_left()
        assert d.engines[0].stats.num_disconnected == 1


async def test_a_client_leaves_during_a_later_derender_call() -> None:
    clock = StepClock()
    async with deployment(engine={"clock": clock}, render_config={"timeout_ms": 60_000}) as d:
        assert d.render is not None
        async with open_stream(d, CHAT, BODY) as stream:
            await stream.take(2)
            fault = d.render.faults.set(FaultKind.HANG, endpoint="derender")
            clock.step()
            await eventually(lambda: fault.num_hits == 1, "the call hangs")
        await d.check_nothing_left()


async def test_a_client_of_many_prompts_leaves_while_one_has_not_begun() -> None:
    async with deployment(num_engines=2) as d:
        d.engines[1].faults.set(FaultKind.HANG, endpoint="generate")
        body = {"model": "tiny", "prompt": ["one", "two"], "max_tokens": 1500, "stream": True}
        asking = asyncio.create_task(d.post(COMPLETIONS, body))
        await eventually(lambda: is_open(d) and d.engines[1].stats.num_open == 1, "both were asked")
        asking.cancel()
        await d.check_nothing_left()
        assert [engine.stats.num_disconnected for engine in d.engines] == [1, 1]


@STREAMS
async def test_a_client_of_the_native_chain_leaves(stream: bool) -> None:
    async with deployment(has_render=False, engine={"clock": StepClock()}) as d:
        asking = asyncio.create_task(d.post(CHAT, {**BODY, "stream": stream}))
        await eventually(lambda: is_running(d), "the engine generates")
        asking.cancel()
        await d.check_nothing_left()
        assert d.engines[0].stats.num_disconnected == 1


async def test_a_hundred_leave_and_the_next_one_is_served() -> None:
    """No place, connection or count is worn out by clients that leave."""
    clock = StepClock()
    async with deployment(engine={"clock": clock, "max_num_seqs": 4}) as d:
        asking = [asyncio.create_task(d.post(CHAT, {**BODY, "stream": bool(n % 2)})) for n in range(100)]
        await eventually(lambda: d.engines[0].stats.num_open == 100, "all were asked")
        for task in asking:
            task.cancel()
        await d.check_nothing_left()
        clock.run()
        assert (await d.post(CHAT, user("Say hello.", **QUIET))).text() == "Hello there! I am a tiny test model."
        await d.check_nothing_left()
