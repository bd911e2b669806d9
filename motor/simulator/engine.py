"""A simulated vLLM engine: token-only and native endpoints, without weights."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import aiohttp
from aiohttp import web

from motor.simulator.answers import json_answer, read_json
from motor.simulator.clock import Clock, RealClock
from motor.simulator.engine_core import EngineCore, EngineKilled
from motor.simulator.engine_settings import EngineSettings
from motor.simulator.engine_statistics import EngineStatistics, prometheus_text
from motor.simulator.fault_gate import FaultEndpoints
from motor.simulator.faults import Fault, FaultSet
from motor.simulator.generate_endpoint import GenerateEndpoint
from motor.simulator.kv_blocks import TAKE_PATH
from motor.simulator.kv_event_publisher import KvEventPublisher
from motor.simulator.model_folder import ModelFolder
from motor.simulator.native_endpoints import NativeEndpoints
from motor.simulator.scripts import ArithmeticScript, TokenScript
from motor.simulator.server import Endpoint, SimulatorServer

_FIRST_TEXT_ID = 256


class EngineSimulator:
    """A token engine that speaks vLLM 0.32's HTTP; an async context manager.

    Attributes:
        faults: What goes wrong; may be changed at any time.
        core: The engine behind the endpoints.

    Args:
        model: A model folder, for native endpoints, stop strings and EOS ids; None generates without end.
        script: What it generates; endless arithmetic by default.
        settings: Its constants; `overrides` replace single ones.
        faults: The faults in force from the start.
        host: The address to listen on.
        port: The port; 0 for a free one.
        clock: Time.
        overrides: Fields of `EngineSettings` by name.
    """

    def __init__(
        self,
        *,
        model: ModelFolder | str | Path | None = None,
        script: TokenScript | None = None,
        settings: EngineSettings | None = None,
        faults: Iterable[Fault] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        **overrides: Any,
    ) -> None:
        self.settings = replace(settings or EngineSettings(), **overrides)
        folder = model if isinstance(model, ModelFolder) or model is None else ModelFolder(model)
        self.faults = FaultSet(faults)
        self.core = EngineCore(self.settings, script or _endless(folder, self.settings), folder, clock or RealClock())
        self._server = SimulatorServer(host, port, self.settings.keep_alive_seconds)
        self._add_endpoints()

    @property
    def url(self) -> str:
        """The address, without a trailing slash."""
        return self._server.url

    @property
    def port(self) -> int:
        """The port; known once it has started."""
        return self._server.port

    @property
    def stats(self) -> EngineStatistics:
        """Counts of requests and tokens."""
        return self.core.statistics

    @property
    def kv_events(self) -> KvEventPublisher:
        """Where changes of the prefix cache are published.

        Raises:
            LookupError: They aren't.
        """
        if self.core.kv_events is None:
            raise LookupError("the engine publishes no KV events")
        return self.core.kv_events

    @property
    def num_kv_blocks_held(self) -> int:
        """Blocks that prefills keep for their decodes."""
        return self.core.kv_blocks.num_blocks_held

    @property
    def num_connections(self) -> int:
        """Open client connections, idle ones included."""
        return self._server.num_connections

    @property
    def is_listening(self) -> bool:
        """False after a crash."""
        return self._server.is_listening

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The address can't be used.
        """
        self.core.session = aiohttp.ClientSession()
        try:
            await self._server.start()
        except OSError:
            await self.core.session.close()
            raise
        self.core.address = (self._server.host, self._server.port)
        if self.core.kv_events is not None:
            await self.core.kv_events.start()

    async def stop(self) -> None:
        """Stop, cancel what runs and close all connections."""
        await self._server.stop()
        if self.core.kv_events is not None:
            await self.core.kv_events.stop()
        if self.core.session is not None:
            await self.core.session.close()

    async def crash(self) -> None:
        """Die as a killed process: stop listening, reset all connections, lose all KV."""
        await self._server.crash()
        self.core.forget()
        if self.core.kv_events is not None:
            await self.core.kv_events.restart()

    async def restart(self) -> None:
        """Listen again on the same port after a crash."""
        await self._server.restart()

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        """Stop."""
        await self.stop()

    def _add_endpoints(self) -> None:
        generate = GenerateEndpoint(self.core, self.faults)
        native = NativeEndpoints(self.core, self.faults)
        faults = FaultEndpoints(self.faults)
        post: dict[str, Endpoint] = {
            "/inference/v1/generate": generate.generate,
            "/inference/v1/abort_requests": generate.abort_requests,
            "/v1/chat/completions": native.chat,
            "/v1/completions": native.completions,
            "/v1/responses": native.responses,
            "/v1/messages": native.messages,
            "/generate": native.text_generate,
            TAKE_PATH: self._take_kv,
            "/sim/faults": faults.add,
        }
        get: dict[str, Endpoint] = {
            "/health": _health,
            "/version": self._version,
            "/v1/models": self._models,
            "/metrics": self._metrics,
            "/sim/stats": self._statistics,
            "/sim/faults": faults.list,
        }
        for path, endpoint in post.items():
            self._server.add("POST", path, self._guarded(endpoint))
        for path, endpoint in get.items():
            self._server.add("GET", path, endpoint)
        self._server.add("DELETE", "/sim/faults", faults.clear)

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """Let the engine die of requests that vLLM's dies of, and notice clients that leave."""

        async def answer(request: web.Request) -> web.StreamResponse:
            self.stats.num_open += 1
            try:
                return await endpoint(request)
            except EngineKilled:
                await self.crash()
                return web.Response()
            except (asyncio.CancelledError, ConnectionError):
                self.stats.num_disconnected += 1
                raise
            finally:
                self.stats.num_open -= 1

        return answer

    async def _version(self, _request: web.Request) -> web.Response:
        return json_answer({"version": self.settings.version})

    async def _models(self, _request: web.Request) -> web.Response:
        return json_answer(models_body(self.settings.served_model_name, self.settings.max_model_len, self.core.clock))

    async def _metrics(self, _request: web.Request) -> web.Response:
        usage = min(1.0, self.core.num_kv_blocks_used / self.settings.kv_blocks)
        text = prometheus_text(
            self.stats, self.settings.served_model_name, usage, self.settings.block_size, self.settings.kv_blocks
        )
        return web.Response(text=text, content_type="text/plain")

    async def _statistics(self, _request: web.Request) -> web.Response:
        kv = {"num_kv_blocks_held": self.num_kv_blocks_held, "num_kv_transfers": self.core.kv_blocks.num_taken}
        return json_answer({**self.stats.as_json(), **kv, "num_connections": self.num_connections})

    async def _take_kv(self, request: web.Request) -> web.Response:
        body = await read_json(request)
        status = self.core.kv_blocks.take(
            body.get("engine_id"), body.get("remote_request_id"), int(body.get("num_blocks", 0))
        )
        return json_answer({}, status)


async def _health(_request: web.Request) -> web.Response:
    return web.Response()


def models_body(name: str, max_model_len: int, clock: Clock) -> dict[str, Any]:
    """Return the answer of `/v1/models`."""
    card = {
        "id": name,
        "object": "model",
        "created": int(clock.unix_time()),
        "owned_by": "vllm",
        "root": name,
        "parent": None,
        "max_model_len": max_model_len,
        "permission": [],
    }
    return {"object": "list", "data": [card]}


def _endless(model: ModelFolder | None, settings: EngineSettings) -> ArithmeticScript:
    if model is not None:
        return ArithmeticScript(model.plain_ids)
    return ArithmeticScript(range(min(_FIRST_TEXT_ID, settings.vocab_size - 1), settings.vocab_size))
