"""A simulated vLLM Render sidecar with a real tokenizer."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from motor.simulator.answers import RequestRejected, json_answer, model_not_found, read_json
from motor.simulator.clock import Clock, RealClock
from motor.simulator.derender_complete import derender_chat, derender_completions
from motor.simulator.derender_request import (
    DerenderChatRequest,
    DerenderCompletionRequest,
    DerenderStreamRequest,
    convert,
)
from motor.simulator.derender_stream import derender_chat_chunk, derender_completion_chunk
from motor.simulator.engine import models_body
from motor.simulator.fault_gate import FaultEndpoints, meet
from motor.simulator.faults import Fault, FaultKind, FaultSet, Leg
from motor.simulator.model_folder import ModelFolder
from motor.simulator.native_text import chat_prompt
from motor.simulator.render_settings import RenderSettings
from motor.simulator.rendering import render_chat, render_completions
from motor.simulator.server import SimulatorServer

_Work = Callable[[dict[str, Any], str | None], object]


@dataclass(slots=True)
class RenderStatistics:
    """Counts since the start; every field changes as requests come and go.

    Attributes:
        num_in_flight: Requests that are served now, hanging ones included.
        requests: Requests by endpoint: `render_chat`, `render_completions`, `derender_chat`, `derender_completions`,
            `tokenize`, `detokenize`.
        statuses: Answers by HTTP status.
    """

    num_in_flight: int = 0
    requests: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def num_renders(self) -> int:
        """Requests to both render endpoints."""
        return self.requests["render_chat"] + self.requests["render_completions"]

    @property
    def num_derenders(self) -> int:
        """Requests to both derender endpoints."""
        return self.requests["derender_chat"] + self.requests["derender_completions"]


class RenderSimulator:
    """A Render sidecar that speaks vLLM 0.32's HTTP; an async context manager.

    A fault's `endpoint` is `render`, `derender`, `tokenize` or `any`.

    Attributes:
        faults: What goes wrong; may be changed at any time.
        stats: Counts of requests.

    Args:
        model: The model folder.
        settings: Its constants; `overrides` replace single ones.
        faults: The faults in force from the start.
        host: The address to listen on.
        port: The port; 0 for a free one.
        clock: Time.
        overrides: Fields of `RenderSettings` by name.
    """

    def __init__(
        self,
        *,
        model: ModelFolder | str | Path,
        settings: RenderSettings | None = None,
        faults: Iterable[Fault] = (),
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Clock | None = None,
        **overrides: Any,
    ) -> None:
        self.settings = replace(settings or RenderSettings(), **overrides)
        self.faults = FaultSet(faults)
        self.stats = RenderStatistics()
        self._model = model if isinstance(model, ModelFolder) else ModelFolder(model)
        self._clock = clock or RealClock()
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
    def num_connections(self) -> int:
        """Open client connections, idle ones included."""
        return self._server.num_connections

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The address can't be used.
        """
        await self._server.start()

    async def stop(self) -> None:
        """Stop, cancel what runs and close all connections."""
        await self._server.stop()

    async def crash(self) -> None:
        """Die as a killed process: stop listening and reset all connections."""
        await self._server.crash()

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
        work: dict[str, tuple[str, str, _Work]] = {
            "/v1/chat/completions/render": ("render", "render_chat", self._render_chat),
            "/v1/completions/render": ("render", "render_completions", self._render_completions),
            "/v1/chat/completions/derender": ("derender", "derender_chat", self._derender_chat),
            "/v1/completions/derender": ("derender", "derender_completions", self._derender_completions),
            "/tokenize": ("tokenize", "tokenize", self._tokenize),
            "/detokenize": ("tokenize", "detokenize", self._detokenize),
        }
        for path, (family, name, answer) in work.items():
            self._server.add("POST", path, self._served(family, name, answer))
        faults = FaultEndpoints(self.faults)
        self._server.add("POST", "/sim/faults", faults.add)
        self._server.add("GET", "/sim/faults", faults.list)
        self._server.add("DELETE", "/sim/faults", faults.clear)
        self._server.add("GET", "/health", self._health)
        self._server.add("GET", "/version", self._version)
        self._server.add("GET", "/v1/models", self._models)
        self._server.add("GET", "/metrics", self._metrics)
        self._server.add("GET", "/sim/stats", self._statistics)

    def _served(self, family: str, name: str, answer: _Work) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(request: web.Request) -> web.StreamResponse:
            self.stats.requests[name] += 1
            self.stats.num_in_flight += 1
            try:
                response = await self._answer(request, family, answer)
            except RequestRejected as rejected:
                response = json_answer(rejected.body, rejected.status)
            finally:
                self.stats.num_in_flight -= 1
            self.stats.statuses[response.status] += 1
            return response

        return serve

    async def _answer(self, request: web.Request, family: str, answer: _Work) -> web.StreamResponse:
        body = await read_json(request)
        faults = self.faults.strike(Leg.ANY, family)
        early = await meet(request, faults)
        if early is not None:
            return early
        if self.settings.delay_seconds:
            await self._clock.sleep(self.settings.delay_seconds * faults.slow_factor)
        if body.get("model") not in (None, self.settings.served_model_name):
            raise model_not_found(body["model"])
        result = answer(body, request.headers.get("X-Request-Id"))
        return json_answer({} if faults.get(FaultKind.INVALID) else result)

    def _render_chat(self, body: dict[str, Any], request_id: str | None) -> object:
        return render_chat(self._model, self.settings, body, request_id)

    def _render_completions(self, body: dict[str, Any], request_id: str | None) -> object:
        return render_completions(self._model, self.settings, body, request_id)

    def _derender_chat(self, body: dict[str, Any], _request_id: str | None) -> object:
        created = int(self._clock.unix_time())
        if body.get("stream"):
            return derender_chat_chunk(self._model, self.settings, convert(body, DerenderStreamRequest), created)
        return derender_chat(self._model, self.settings, convert(body, DerenderChatRequest), created)

    def _derender_completions(self, body: dict[str, Any], _request_id: str | None) -> object:
        created = int(self._clock.unix_time())
        if body.get("stream"):
            return derender_completion_chunk(self._model, self.settings, convert(body, DerenderStreamRequest), created)
        return derender_completions(self._model, self.settings, convert(body, DerenderCompletionRequest), created)

    def _tokenize(self, body: dict[str, Any], _request_id: str | None) -> object:
        if "messages" in body:
            ids = chat_prompt(self._model, body)
        elif isinstance(body.get("prompt"), str):
            ids = self._model.encode(body["prompt"])
        else:
            raise RequestRejected("prompt must be a string", param="prompt")
        tokens = [self._model.tokenizer.id_to_token(token_id) for token_id in ids]
        return {
            "count": len(ids),
            "max_model_len": self.settings.max_model_len,
            "tokens": ids,
            "token_strs": tokens if body.get("return_token_strs") else None,
        }

    def _detokenize(self, body: dict[str, Any], _request_id: str | None) -> object:
        ids = body.get("tokens")
        if not isinstance(ids, list):
            raise RequestRejected("tokens must be a list of ids", param="tokens")
        return {"prompt": self._model.decode(ids, skip_special_tokens=False)}

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _version(self, _request: web.Request) -> web.Response:
        return json_answer({"version": self.settings.version})

    async def _models(self, _request: web.Request) -> web.Response:
        return json_answer(models_body(self.settings.served_model_name, self.settings.max_model_len, self._clock))

    async def _metrics(self, _request: web.Request) -> web.Response:
        lines = ["# TYPE http_requests_total counter"]
        lines += [f'http_requests_total{{handler="{name}"}} {count}' for name, count in self.stats.requests.items()]
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def _statistics(self, _request: web.Request) -> web.Response:
        return json_answer({**asdict(self.stats), "num_connections": self.num_connections})
