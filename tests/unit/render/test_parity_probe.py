"""The token parity probe, with a sidecar and engines that are real HTTP peers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from structlog.testing import capture_logs

from motor.coordinator.domain.instance import Instance, Role
from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.domain.tokens import SemanticTokenIds
from motor.coordinator.instances.engine_facts import EngineFactsFeed
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.render.models import TokenizedBatch, TokenizedRequest
from motor.coordinator.render.parity_probe import ParityProbe
from motor.coordinator.render.sidecar_facts import SidecarFactsFeed
from motor.coordinator.render.vllm_render_client import VllmRenderClient
from motor.coordinator.transport.http_pool import HttpPool
from motor.simulator.server import SimulatorServer

DEADLINE_SECONDS = 10.0


class Peer:
    """A sidecar or an engine: tells a version and renders what it is told to. Mutable: all of it."""

    def __init__(self) -> None:
        self.server = SimulatorServer("127.0.0.1", 0)
        self.version = "0.32.0"
        self.ids: list[list[int]] = [[1, 2, 3]]
        self.status = 200
        self.bodies: list[bytes] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.was_asked = asyncio.Event()
        self.server.add("GET", "/version", self._tell_version)
        for path in ("/v1/chat/completions/derender", "/v1/completions", "/inference/v1/generate"):
            self.server.add("POST", path, self._refuse)
        self.server.add("POST", "/v1/chat/completions/render", self._render_chat)
        self.server.add("POST", "/v1/completions/render", self._render_completions)

    async def _tell_version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": self.version})

    async def _refuse(self, _request: web.Request) -> web.Response:
        return web.json_response({}, status=400)

    async def _render_chat(self, request: web.Request) -> web.Response:
        return web.json_response((await self._rendered(request))[0], status=self.status)

    async def _render_completions(self, request: web.Request) -> web.Response:
        return web.json_response(await self._rendered(request), status=self.status)

    async def _rendered(self, request: web.Request) -> list[dict[str, Any]]:
        self.bodies.append(await request.read())
        self.was_asked.set()
        await self.may_answer.wait()
        return [{"token_ids": ids, "sampling_params": {}} for ids in self.ids]


@dataclass
class Bench:
    """A probe with its peers."""

    probe: ParityProbe
    sidecar: Peer
    sidecar_facts: SidecarFactsFeed
    engines: list[Peer]
    engine_facts: EngineFactsFeed
    outcomes: "asyncio.Queue[tuple[str, str]]" = field(default_factory=asyncio.Queue)

    async def refresh(self) -> None:
        """Ask all peers."""
        await self.sidecar_facts.refresh()
        await self.engine_facts.refresh()

    async def probed(self, batch: TokenizedBatch) -> tuple[str, str]:
        """Offer a request and return what its probe showed."""
        self.probe.offer(batch)
        async with asyncio.timeout(DEADLINE_SECONDS):
            return await self.outcomes.get()


def batch_of(api: Api, *prompts: tuple[int, ...]) -> TokenizedBatch:
    client = ClientRequest(request_id="r", peer_id="r", api=api, body=b'{"the": "body"}', fields={})
    requests = (TokenizedRequest(i, SemanticTokenIds(ids), {}, {}) for i, ids in enumerate(prompts))
    return TokenizedBatch(client, tuple(requests))


CHAT = batch_of(Api.CHAT, (1, 2, 3))


@asynccontextmanager
async def bench(
    *, num_engines: int = 1, ratio: float = 1.0, draw: float = 0.0, stops: bool = True
) -> AsyncIterator[Bench]:
    pool = HttpPool(connect_seconds=2.0)
    peers = [Peer() for _ in range(num_engines + 1)]
    try:
        for peer in peers:
            await peer.server.start()
        sidecar, *engines = peers
        registry = InstanceRegistry(
            Instance(f"e{index}", Role.UNION, engine.server.url, 1) for index, engine in enumerate(engines)
        )
        sidecar_facts = SidecarFactsFeed(VllmRenderClient(pool, [sidecar.server.url], 5.0), "tiny")
        engine_facts = EngineFactsFeed(registry, pool, "tiny")
        outcomes: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
        probe = ParityProbe(
            registry,
            sidecar_facts,
            engine_facts,
            lambda instance: VllmRenderClient(pool, [instance.url], 5.0),
            model="tiny",
            ratio=ratio,
            can_stop_token_chain=stops,
            draw=lambda: draw,
            on_outcome=lambda instance_id, outcome: outcomes.put_nowait((instance_id, outcome)),
        )
        built = Bench(probe, sidecar, sidecar_facts, engines, engine_facts, outcomes)
        await built.refresh()
        running = asyncio.create_task(probe.run())
        try:
            yield built
        finally:
            running.cancel()
            await asyncio.wait([running])
    finally:
        for peer in peers:
            peer.may_answer.set()
            await peer.server.stop()
        await pool.close()


async def test_equal_ids_are_a_match() -> None:
    async with bench() as b:
        assert await b.probed(CHAT) == ("e0", "match")
        assert b.engines[0].bodies == [b'{"the": "body"}'], "the engine renders what the client sent"
        assert not b.probe.stops_token_chain


async def test_other_ids_are_logged_once_and_stop_the_token_chain() -> None:
    async with bench() as b:
        b.engines[0].ids = [[1, 2, 4, 3]]
        with capture_logs() as logs:
            assert await b.probed(CHAT) == ("e0", "mismatch")
            assert await b.probed(CHAT) == ("e0", "mismatch")
        (line,) = [line for line in logs if line["event"] == "token_parity.mismatch"]
        assert (line["instance"], line["model"]) == ("e0", "tiny")
        assert (line["num_sidecar_tokens"], line["num_engine_tokens"], line["first_difference"]) == (3, 4, 2)
        assert b.probe.stops_token_chain


async def test_it_stops_nothing_unless_told_to() -> None:
    async with bench(stops=False) as b:
        b.engines[0].ids = [[9]]
        assert await b.probed(CHAT) == ("e0", "mismatch")
        assert not b.probe.stops_token_chain


async def test_a_changed_engine_gets_another_chance() -> None:
    async with bench() as b:
        b.engines[0].ids = [[9]]
        await b.probed(CHAT)
        b.engines[0].version = "0.32.1"
        await b.refresh()
        assert not b.probe.stops_token_chain
        with capture_logs() as logs:
            await b.probed(CHAT)
        assert [line["event"] for line in logs].count("token_parity.mismatch") == 1
        assert b.probe.stops_token_chain


async def test_a_restarted_sidecar_gets_another_chance() -> None:
    async with bench() as b:
        b.engines[0].ids = [[9]]
        await b.probed(CHAT)
        await b.sidecar.server.crash()
        await b.refresh()
        assert b.probe.stops_token_chain, "away is not changed"
        await b.sidecar.server.restart()
        await b.refresh()
        assert not b.probe.stops_token_chain


async def test_engines_take_turns() -> None:
    async with bench(num_engines=2) as b:
        b.engines[1].ids = [[9]]
        assert {await b.probed(CHAT), await b.probed(CHAT)} == {("e0", "match"), ("e1", "mismatch")}


async def test_every_prompt_of_a_list_counts() -> None:
    async with bench() as b:
        b.engines[0].ids = [[1], [2, 3]]
        assert await b.probed(batch_of(Api.COMPLETIONS, (1,), (2, 3))) == ("e0", "match")
        assert await b.probed(batch_of(Api.COMPLETIONS, (1,), (2, 4))) == ("e0", "mismatch")
        assert await b.probed(batch_of(Api.COMPLETIONS, (1,))) == ("e0", "mismatch")


async def test_an_engine_that_can_not_render_proves_nothing() -> None:
    async with bench() as b:
        b.engines[0].status = 400  # as with --tokens-only: no tokenizer
        with capture_logs() as logs:
            assert await b.probed(CHAT) == ("e0", "unanswered")
            assert await b.probed(CHAT) == ("e0", "unanswered")
        assert [line["event"] for line in logs].count("token_parity.unanswered") == 1
        assert not b.probe.stops_token_chain


async def test_one_request_at_a_time() -> None:
    async with bench() as b:
        engine = b.engines[0]
        engine.may_answer.clear()
        for _ in range(5):
            b.probe.offer(CHAT)
        async with asyncio.timeout(DEADLINE_SECONDS):
            await engine.was_asked.wait()
        b.probe.offer(CHAT)
        engine.may_answer.set()
        assert await b.probed(CHAT) == ("e0", "match")
        assert len(engine.bodies) == 1, "what came meanwhile was left alone"


async def test_the_share_of_requests() -> None:
    async with bench(ratio=0.25, draw=0.25) as b:
        b.probe.offer(CHAT)
        await asyncio.sleep(0)
        assert b.engines[0].bodies == []
    async with bench(ratio=0.25, draw=0.2499) as b:
        assert await b.probed(CHAT) == ("e0", "match")
