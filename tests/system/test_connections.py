"""Keep-alive connections that a peer closes at the very moment of reuse: the client never learns of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from motor.coordinator.transport.http_pool import STALE_WINDOW_SECONDS
from motor.simulator import EngineSimulator, ModelFolder, RenderSimulator
from tests.deployment import CHAT, MODEL, QUIET, Deployment, deployment, eventually, expected_script, user
from tests.event_reader import DONE, open_stream
from tests.impatient_peer import ImpatientPeer, impatient_peer

HELLO, TEXT = user("Say hello.", **QUIET), "Hello there! I am a tiny test model."
GENERATE = "/inference/v1/generate"
NO_RELAY = {"max_attempts": 1}
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


def num_retries(d: Deployment) -> float:
    """Return how often a request was repeated on a fresh connection."""
    lines = d.built.metrics.render()[0].decode().splitlines()
    return float(next(line for line in lines if line.startswith("motor_connection_retries_total")).split()[1])


@asynccontextmanager
async def impatient_engine(**settings: Any) -> AsyncIterator[tuple[Deployment, EngineSimulator, ImpatientPeer]]:
    """Run a deployment whose engine closes the connection when it is used for a second generate."""
    model = ModelFolder(MODEL)
    simulated = EngineSimulator(model=model, script=expected_script(model), served_model_name="tiny")
    async with simulated as engine, impatient_peer(engine.url, GENERATE) as (url, peer):
        instances = [{"id": "impatient", "role": "union", "url": url}]
        async with deployment(num_engines=0, instances=instances, **settings) as d:
            yield d, engine, peer
            await eventually(lambda: engine.stats.num_open == 0, "the engine is idle")
            await d.check_nothing_left()


@asynccontextmanager
async def impatient_sidecar(closes: str) -> AsyncIterator[tuple[Deployment, ImpatientPeer]]:
    """Run a deployment whose sidecar closes the connection when it is used for another such call."""
    simulated = RenderSimulator(model=MODEL, served_model_name="tiny", max_model_len=2048)
    async with simulated as sidecar, impatient_peer(sidecar.url, closes) as (url, peer):
        endpoint = {"host": "127.0.0.1", "port": int(url.rpartition(":")[2])}
        async with deployment(render_config={"endpoint": endpoint}) as d:
            yield d, peer
            await eventually(lambda: sidecar.stats.num_in_flight == 0, "the sidecar is idle")
            await d.check_nothing_left()


@STREAMS
async def test_an_engine_closes_at_reuse(stream: bool) -> None:
    async with impatient_engine(relay=NO_RELAY) as (d, engine, peer):
        for _ in range(4):
            answer = await d.post(CHAT, {**HELLO, "stream": stream})
            assert (answer.status, answer.text()) == (200, TEXT)
        assert peer.num_closed_at_reuse > 0
        assert num_retries(d) == peer.num_closed_at_reuse
        assert engine.stats.requests["generate"] == 4  # what was closed had not been begun: nothing ran twice


@STREAMS
@pytest.mark.parametrize("closes", ["/render", "/derender"])
async def test_a_sidecar_closes_at_reuse(closes: str, stream: bool) -> None:
    async with impatient_sidecar(closes) as (d, peer):
        for _ in range(4):
            answer = await d.post(CHAT, {**HELLO, "stream": stream})
            assert (answer.status, answer.text()) == (200, TEXT)
        assert peer.num_closed_at_reuse > 0
        assert num_retries(d) == peer.num_closed_at_reuse
        assert d.num_generates == 4


async def test_the_native_chain_meets_a_closed_connection() -> None:
    async with impatient_engine(has_render=False) as (d, _, peer):
        peer.closes = CHAT
        for _ in range(3):
            assert (await d.post(CHAT, HELLO)).text() == TEXT
        assert num_retries(d) == peer.num_closed_at_reuse > 0


@STREAMS
async def test_a_peer_that_dies_later_is_not_asked_twice(stream: bool) -> None:
    """It may have been working on the request: whether to repeat that is the relay's decision, never the pool's."""
    async with impatient_engine(relay=NO_RELAY) as (d, engine, peer):

        async def work_for_a_while() -> None:
            await asyncio.sleep(STALE_WINDOW_SECONDS * 1.1)  # the time is what this test is about

        await d.check_nothing_left()
        num_closed, num_repeated = peer.num_closed_at_reuse, num_retries(d)
        peer.before_close = work_for_a_while
        answer = await d.post(CHAT, {**HELLO, "stream": stream})  # on the connection that the version was asked on
        assert (answer.status, answer.json["error"]["message"]) == (502, "the connection to the engine broke")
        assert peer.num_closed_at_reuse == num_closed + 1
        assert num_retries(d) == num_repeated
        assert engine.stats.requests["generate"] == 0


async def test_many_derender_calls_use_few_connections() -> None:
    """Each chunk's derender call reuses a connection: nothing is opened per token."""
    async with deployment() as d:
        assert d.render is not None
        while d.render.stats.num_derenders < 60:
            async with open_stream(d, CHAT, user("Tell me a long story.", **QUIET)) as stream:
                assert (await stream.rest())[-1] == DONE
        assert d.render.num_connections <= 4
        assert d.engines[0].num_connections <= 4
        await d.check_nothing_left()
