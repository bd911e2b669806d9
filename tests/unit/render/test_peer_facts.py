"""What is learned of the peers together, and how operators are told; the sidecar is a real HTTP peer."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from structlog.testing import capture_logs

from motor.coordinator.domain.instance import Instance, Role
from motor.coordinator.domain.version import Version
from motor.coordinator.instances.engine_facts import EngineFactsFeed
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.render.peer_facts import PeerFactsFeed
from motor.coordinator.render.sidecar_facts import SidecarFactsFeed
from motor.coordinator.render.vllm_render_client import VllmRenderClient
from motor.coordinator.transport.http_pool import HttpPool
from motor.simulator.server import SimulatorServer


class FakeSidecar:
    """Answers as its fields say; mutable: all of them."""

    def __init__(self) -> None:
        self.server = SimulatorServer("127.0.0.1", 0)
        self.version = "0.32.0"
        self.derender_status = 400
        self.lone_text = " a"
        self.calls: list[str] = []
        self.server.add("GET", "/version", self._tell_version)
        self.server.add("POST", "/v1/chat/completions/derender", self._derender_chat)
        self.server.add("POST", "/v1/completions/render", self._render)
        self.server.add("POST", "/v1/completions/derender", self._derender_completion)

    async def _tell_version(self, request: web.Request) -> web.Response:
        return self._answer(request, {"version": self.version})

    async def _derender_chat(self, request: web.Request) -> web.Response:
        return self._answer(request, {}, self.derender_status)

    async def _render(self, request: web.Request) -> web.Response:
        return self._answer(request, [{"token_ids": [64, 267], "sampling_params": {}}])

    async def _derender_completion(self, request: web.Request) -> web.Response:
        (response,) = (await request.json())["generate_responses"]
        assert response["choices"][0]["token_ids"] == [267], "the second word alone"
        return self._answer(request, {"choices": [{"text": self.lone_text}]})

    def _answer(self, request: web.Request, value: Any, status: int = 200) -> web.Response:
        self.calls.append(request.path)
        return web.json_response(value, status=status)


@asynccontextmanager
async def feeds(*instances: Instance) -> AsyncIterator[tuple[FakeSidecar, SidecarFactsFeed, PeerFactsFeed]]:
    sidecar = FakeSidecar()
    pool = HttpPool(connect_seconds=2.0)
    async with sidecar.server:
        try:
            facts = SidecarFactsFeed(VllmRenderClient(pool, [sidecar.server.url], 5.0), "tiny")
            yield sidecar, facts, PeerFactsFeed(facts, EngineFactsFeed(InstanceRegistry(instances), pool, "tiny"))
        finally:
            await pool.close()


async def test_a_recent_sidecar_with_and_without_parser() -> None:
    async with feeds() as (sidecar, facts, peers):
        assert await peers.refresh()
        assert (facts.version, facts.has_parser, facts.has_derender, facts.epoch) == (Version(0, 32), True, True, 1)
        sidecar.version, sidecar.derender_status = "0.32.1", 200
        await peers.refresh()
        assert (facts.version, facts.has_parser, facts.epoch) == (Version(0, 32, 1), False, 2)
        assert not peers.answer.shows_cut_characters


async def test_a_known_sidecar_is_not_asked_to_derender_again() -> None:
    async with feeds() as (sidecar, _, peers):
        await peers.refresh()
        sidecar.calls.clear()
        await peers.refresh()
        assert sidecar.calls == ["/version"]


async def test_a_sidecar_that_comes_back_is_asked_anew() -> None:
    async with feeds() as (sidecar, facts, peers):
        await peers.refresh()
        await sidecar.server.crash()
        assert not await peers.refresh()
        assert facts.version == Version(0, 32), "what is known is kept"
        sidecar.derender_status = 200
        await sidecar.server.restart()
        assert await peers.refresh()
        assert (facts.has_parser, facts.epoch) == (False, 2)


async def test_a_sidecar_without_derender_is_asked_until_it_has_it() -> None:
    async with feeds() as (sidecar, _, peers):
        sidecar.derender_status = 404
        await peers.refresh()
        assert not peers.peers.has_derender
        sidecar.derender_status = 400
        await peers.refresh()
        assert peers.peers.has_derender


async def test_an_old_sidecar_that_loses_spaces() -> None:
    async with feeds() as (sidecar, _, peers):
        sidecar.version, sidecar.lone_text = "0.28.0", "a"
        await peers.refresh()
        assert not peers.peers.keeps_spaces
        assert peers.answer.shows_cut_characters


async def test_an_old_sidecar_with_a_byte_level_tokenizer_keeps_them() -> None:
    async with feeds() as (sidecar, _, peers):
        sidecar.version = "0.28.0"
        await peers.refresh()
        assert peers.peers.keeps_spaces
        assert peers.peers.oldest_version == Version(0, 28)


async def test_operators_get_one_line_per_change() -> None:
    async with feeds() as (sidecar, _, peers):
        sidecar.version = "0.28.0"
        with capture_logs() as logs:
            await peers.refresh()
            await peers.refresh()
            sidecar.version = "0.32.0"
            await peers.refresh()
        told = [(line["event"], line["shortcoming"][:33]) for line in logs if line["event"].startswith("capability.")]
        expected = "the sidecar's vLLM 0.28.0 is olde"
        assert told == [("capability.missing", expected), ("capability.restored", expected)]


async def test_an_instance_that_does_not_answer_must_be_asked_again_soon() -> None:
    gone = SimulatorServer("127.0.0.1", 0)
    async with gone:
        url = gone.url
    async with feeds(Instance("e0", Role.UNION, url, 1)) as (_, _, peers):
        assert not await peers.refresh()
        assert peers.peers.engine_version is None
