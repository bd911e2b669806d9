"""What is learned of engines: by real HTTP, from a peer that answers as vLLM of several versions does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from motor.coordinator.domain.instance import Instance, Role
from motor.coordinator.domain.version import Version
from motor.coordinator.instances.engine_facts import EngineFacts, EngineFactsFeed
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.transport.http_pool import HttpPool
from motor.simulator.server import SimulatorServer, reset_connection


@dataclass
class FakeEngine:
    """Answers as its fields say, and counts."""

    server: SimulatorServer
    version: Any = "0.32.0"
    fingerprint: str | None = "vllm-0.32.0-tp1-abc"
    native_status: int = 200
    generate_status: int = 400
    is_busy: bool = False
    calls: list[str] = field(default_factory=list)

    def take(self, request: web.Request) -> None:
        self.calls.append(request.path)

    async def tell_version(self, request: web.Request) -> web.Response:
        self.take(request)
        return web.json_response({"version": self.version} if self.version is not None else {"detail": "Not Found"})

    async def complete(self, request: web.Request) -> web.Response:
        self.take(request)
        if self.is_busy:
            reset_connection(request.transport)
        return web.json_response({"id": "x", "system_fingerprint": self.fingerprint}, status=self.native_status)

    async def generate(self, request: web.Request) -> web.Response:
        self.take(request)
        assert await request.json() == {}, "the trial call must be one that no engine runs"
        return web.json_response({"detail": "?"}, status=self.generate_status)


@asynccontextmanager
async def fake_engine() -> AsyncIterator[FakeEngine]:
    server = SimulatorServer("127.0.0.1", 0)
    engine = FakeEngine(server)
    server.add("GET", "/version", engine.tell_version)
    server.add("POST", "/v1/completions", engine.complete)
    server.add("POST", "/inference/v1/generate", engine.generate)
    async with server:
        yield engine


@asynccontextmanager
async def feed_of(*engines: FakeEngine) -> AsyncIterator[EngineFactsFeed]:
    instances = [Instance(f"e{index}", Role.UNION, engine.server.url, 1) for index, engine in enumerate(engines)]
    pool = HttpPool(connect_seconds=2.0)
    try:
        yield EngineFactsFeed(InstanceRegistry(instances), pool, "tiny")
    finally:
        await pool.close()


async def test_a_recent_engine() -> None:
    async with fake_engine() as engine, feed_of(engine) as feed:
        assert feed.oldest_version is None
        assert await feed.refresh()
        assert feed.facts == {"e0": EngineFacts("0.32.0", "vllm-0.32.0-tp1-abc", has_generate=True, epoch=1)}
        assert feed.oldest_version == Version(0, 32)
        assert feed.system_fingerprint == "vllm-0.32.0-tp1-abc"


async def test_a_known_engine_is_asked_for_its_version_only() -> None:
    async with fake_engine() as engine, feed_of(engine) as feed:
        await feed.refresh()
        engine.calls.clear()
        assert await feed.refresh()
        assert engine.calls == ["/version"]


async def test_the_oldest_of_several_counts() -> None:
    async with fake_engine() as one, fake_engine() as other, feed_of(one, other) as feed:
        one.version, one.fingerprint = "0.28.0", None
        await feed.refresh()
        assert feed.oldest_version == Version(0, 28)
        assert feed.system_fingerprint == "vllm-0.32.0-tp1-abc"


async def test_another_version_is_noticed() -> None:
    async with fake_engine() as engine, feed_of(engine) as feed:
        await feed.refresh()
        engine.version, engine.fingerprint = "0.28.0", None
        await feed.refresh()
        assert feed.facts == {"e0": EngineFacts("0.28.0", None, has_generate=True, epoch=2)}


async def test_an_engine_that_comes_back_is_asked_everything_anew() -> None:
    async with fake_engine() as engine, feed_of(engine) as feed:
        await feed.refresh()
        await engine.server.crash()
        assert not await feed.refresh()
        assert feed.facts["e0"].epoch == 1, "what is known is kept"
        engine.generate_status = 403
        await engine.server.restart()
        assert await feed.refresh()
        assert feed.facts["e0"] == EngineFacts("0.32.0", "vllm-0.32.0-tp1-abc", has_generate=False, epoch=2)


async def test_absent_generate_is_asked_for_until_it_is_there() -> None:
    async with fake_engine() as engine, feed_of(engine) as feed:
        for status in (403, 404, 405, 501):
            engine.generate_status = status
            assert await feed.refresh()
            assert not feed.facts["e0"].has_generate
        engine.generate_status = 422
        await feed.refresh()
        assert feed.facts["e0"].has_generate


async def test_engines_without_native_api_or_version() -> None:
    async with fake_engine() as engine, feed_of(engine) as feed:
        engine.native_status, engine.version = 500, None
        assert await feed.refresh()
        assert feed.facts == {"e0": EngineFacts("", None, has_generate=True, epoch=1)}
        assert feed.oldest_version is None


async def test_the_version_is_known_before_a_busy_engine_answers_the_rest() -> None:
    async with fake_engine() as engine, feed_of(engine) as feed:
        engine.version, engine.is_busy = "0.28.0", True
        assert not await feed.refresh(), "it must be asked again soon"
        assert feed.oldest_version == Version(0, 28)
        engine.is_busy = False
        assert await feed.refresh()
        assert feed.facts["e0"].system_fingerprint == "vllm-0.32.0-tp1-abc"
