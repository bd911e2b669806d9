"""A whole deployment in one process: simulated sidecar and engines, a real Coordinator, a client; all on loopback.

Leaving it is the zero-leak check: everything that requests took must be back, on our side and on the peers'.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from motor.coordinator import app
from motor.coordinator.api.server import listen
from motor.coordinator.config import Settings
from motor.simulator import EngineSimulator, ModelFolder, RenderSimulator, ScriptedAnswers, TokenScript

MODEL = Path(__file__).parents[1] / "models" / "tiny-qwen3"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}
DEADLINE_SECONDS = 10.0


def user(text: str, **fields: Any) -> dict[str, Any]:
    """Return a greedy chat request with one user message."""
    return {"model": "tiny", "temperature": 0, "messages": [{"role": "user", "content": text}], **fields}


async def eventually(condition: Callable[[], bool], what: str, deadline_seconds: float = DEADLINE_SECONDS) -> None:
    """Wait until a condition holds, giving way to everything else in the loop.

    Raises:
        AssertionError: It does not within the deadline.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline_seconds
    while not condition():
        assert loop.time() < end, f"not within {deadline_seconds} s: {what}"
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Answer:
    """A complete HTTP answer."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The events of an event stream; `[DONE]` as text."""
        payloads = [line[6:] for line in self.body.decode().split("\n\n") if line]
        return [payload if payload == "[DONE]" else json.loads(payload) for payload in payloads]

    def text(self, index: int = 0, field: str = "content") -> str:
        """Return one choice's text, streamed or not."""
        if not self.headers["content-type"].startswith("text/event-stream"):
            choice = self.json["choices"][index]
            return choice["text"] if "text" in choice else choice["message"][field] or ""
        pieces = []
        for event in self.events[:-1]:
            for choice in event["choices"]:
                if choice["index"] == index:
                    pieces.append(choice["text"] if "text" in choice else choice["delta"].get(field) or "")
        return "".join(pieces)


@dataclass
class Deployment:
    """Everything that runs, for tests to look into and to break."""

    url: str
    management_url: str
    engines: Sequence[EngineSimulator]
    render: RenderSimulator | None
    built: app.Coordinator
    http: aiohttp.ClientSession

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        """Send one request, JSON or raw bytes, and read the whole answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **(headers or {})}
        async with self.http.post(self.url + path, data=data, headers=sent) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, url: str) -> Answer:
        """Read one page."""
        async with self.http.get(url) as response:
            return Answer(response.status, response.headers, await response.read())

    async def wait_for_render(self) -> None:
        """Probe the sidecar as the Coordinator does from time to time; afterwards what answers is in use again."""
        for feed in self.built.feeds:
            await feed()

    @property
    def num_generates(self) -> int:
        """Token-only requests that engines have had."""
        return sum(engine.stats.requests["generate"] for engine in self.engines)

    def leftovers(self) -> dict[str, int]:
        """Return what is still held anywhere; all zero when idle."""
        held = dict(self.built.leftovers())
        held["engine_requests"] = sum(engine.stats.num_open for engine in self.engines)
        held["engine_running"] = sum(engine.stats.num_running for engine in self.engines)
        held["kv_blocks"] = sum(engine.num_kv_blocks_held for engine in self.engines)
        if self.render is not None:
            held["sidecar_requests"] = self.render.stats.num_in_flight
        return held

    async def check_nothing_left(self) -> None:
        """The zero-leak check."""
        held: dict[str, int] = {}

        def is_empty() -> bool:
            held.clear()
            held.update(self.leftovers())
            return not any(held.values())

        try:
            await eventually(is_empty, "nothing left behind")
        except AssertionError as error:
            raise AssertionError(f"left behind: { {name: n for name, n in held.items() if n} }") from error


def expected_script(model: ModelFolder) -> ScriptedAnswers:
    """Return the answers that the tiny model is known to give."""
    return ScriptedAnswers.from_expected(MODEL / "expected.json", model)


@asynccontextmanager
async def deployment(
    *,
    num_engines: int = 1,
    engine: dict[str, Any] | None = None,
    script: TokenScript | None = None,
    render: dict[str, Any] | None = None,
    has_render: bool = True,
    roles: Sequence[str] = (),
    **settings: Any,
) -> AsyncIterator[Deployment]:
    """Run a deployment.

    Args:
        num_engines: How many simulated engines.
        engine: Overrides of `EngineSettings`.
        script: What they generate; by default what the tiny model would.
        render: Overrides of `RenderSettings`.
        has_render: Whether there is a sidecar, and the token chain is on.
        roles: Of the instances; all `union` by default.
        settings: Sections of the Coordinator's settings that replace or extend the defaults.
    """
    model = ModelFolder(MODEL)
    constants = {"served_model_name": "tiny", "max_model_len": 2048, **(engine or {})}
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(
                EngineSimulator(model=model, script=script or expected_script(model), **constants)
            )
            for _ in range(num_engines)
        ]
        sidecar = None
        if has_render:
            options = {"served_model_name": "tiny", "max_model_len": 2048, **(render or {})}
            sidecar = await stack.enter_async_context(RenderSimulator(model=model, **options))
        values = _settings(engines, sidecar, roles, settings)
        running = await stack.enter_async_context(running_coordinator(values))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        url, management_url, built = running
        yield Deployment(url, management_url, engines, sidecar, built, http)


def _settings(
    engines: Sequence[EngineSimulator], sidecar: RenderSimulator | None, roles: Sequence[str], extra: dict[str, Any]
) -> Settings:
    kinds = roles or ["union"] * len(engines)
    render: dict[str, Any] = {"enable": sidecar is not None}
    if sidecar is not None:
        render["endpoint"] = {"host": "127.0.0.1", "port": int(sidecar.url.rpartition(":")[2])}
    values = {
        "model": {"served_model_name": "tiny", "path": str(MODEL)},
        "render_config": render,
        "instances": [
            {"id": f"e{number}", "role": role, "url": engine.url, **_kv_events(engine)}
            for number, (engine, role) in enumerate(zip(engines, kinds, strict=True))
        ],
        "api": {"shutdown_grace_seconds": 1},
    }
    for name, section in extra.items():
        values[name] = {**values[name], **section} if isinstance(section, dict) and name in values else section
    return Settings.model_validate(values)


def _kv_events(engine: EngineSimulator) -> dict[str, Any]:
    if not engine.settings.publishes_kv_events:
        return {}
    return {"kv_events": {"address": engine.kv_events.address, "replay_address": engine.kv_events.replay_address}}


@asynccontextmanager
async def running_coordinator(settings: Settings) -> AsyncIterator[tuple[str, str, app.Coordinator]]:
    """Run a Coordinator, and yield its public and its management URL and what it is made of."""
    async with app.coordinator(settings) as built:
        with ExitStack() as stack:
            listeners = [stack.enter_context(listen("127.0.0.1", 0)) for _ in built.applications]
            if built.metaserver is not None:
                built.metaserver.base_url = _url(listeners[2])
            stop = asyncio.Event()
            serving = asyncio.create_task(app.run_servers(built, settings, listeners, stop))
            for feed in built.feeds:
                await feed()  # what is learned of peers is known before the first request
            try:
                yield _url(listeners[0]), _url(listeners[1]), built
            finally:
                stop.set()
                await serving


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{host}:{port}"
