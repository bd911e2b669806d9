"""The processes that are measured: started, awaited and stopped."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

from bench.process_usage import cpu_seconds, resident_kib
from motor.launch.child_spec import ChildSpec
from motor.launch.log_tail import last_lines
from motor.launch.ports import free_ports
from motor.launch.readiness import poll_until_ready
from motor.launch.subprocess_launcher import SubprocessLauncher

BUILD = Path(__file__).parents[1] / "build" / "bench"
MODEL = Path(__file__).parents[1] / "models" / "tiny-qwen3"
MODEL_NAME = "tiny"
MOTOR = (sys.executable, "-m", "motor.cli")
READY_SECONDS = 120.0


class StartFault(Exception):
    """A process did not start; the message has the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server process."""

    name: str
    url: str
    pid: int

    @property
    def cpu_seconds(self) -> float:
        """User and system time so far, descendants included."""
        return cpu_seconds(self.pid)

    @property
    def resident_kib(self) -> float:
        """Resident memory now."""
        return resident_kib(self.pid)


@asynccontextmanager
async def running(
    name: str,
    program: Sequence[str],
    port: int,
    *,
    environment: Mapping[str, str] | None = None,
    ready_path: str = "/health",
) -> AsyncIterator[Server]:
    """Run a server until the block is left.

    Raises:
        StartFault: It ended, or was not ready in time.
    """
    log = BUILD / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)
    url = f"http://127.0.0.1:{port}"
    spec = ChildSpec(name, tuple(program), (), log, url, environment=environment or {})
    process = await SubprocessLauncher().launch(spec)
    ended = asyncio.ensure_future(process.wait())
    ready = asyncio.ensure_future(poll_until_ready(url, (ready_path,)))
    try:
        await asyncio.wait([ended, ready], timeout=READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done() or ended.done():
            raise StartFault("\n".join([f"{name} did not start", *last_lines(log, 10)]))
        yield Server(name, url, process.pid)
    finally:
        ready.cancel()
        await _stop(process.pid, ended)


async def _stop(pid: int, ended: "asyncio.Future[int]") -> None:
    for signal_number in (15, 9):
        if ended.done():
            return
        os.kill(pid, signal_number)
        await asyncio.wait([ended], timeout=10)


@asynccontextmanager
async def simulated_engine(*flags: str) -> AsyncIterator[Server]:
    """Run `motor simulate engine`."""
    (port,) = free_ports(1)
    program = [*MOTOR, "simulate", "engine", "--port", str(port), "--model", str(MODEL)]
    async with running("engine", [*program, "--served-model-name", MODEL_NAME, *flags], port) as server:
        yield server


@asynccontextmanager
async def simulated_render(*flags: str) -> AsyncIterator[Server]:
    """Run `motor simulate render`."""
    (port,) = free_ports(1)
    program = [*MOTOR, "simulate", "render", "--port", str(port), "--model", str(MODEL)]
    async with running("render", [*program, "--served-model-name", MODEL_NAME, *flags], port) as server:
        yield server


@asynccontextmanager
async def coordinator(
    engine_url: str, render_url: str | None = None, *, name: str = "coordinator", **sections: object
) -> AsyncIterator[Server]:
    """Run `motor serve` with one engine, on the token chain if there is a sidecar."""
    port, management_port = free_ports(2)
    settings: dict[str, object] = {
        "api": {"host": "127.0.0.1", "port": port},
        "management": {"port": management_port},
        "model": {"served_model_name": MODEL_NAME, "path": str(MODEL)},
        "instances": [{"id": "engine-0", "role": "union", "url": engine_url}],
        "logging": {"level": "warning"},
        **sections,
    }
    if render_url is not None:
        host, _, render_port = render_url.removeprefix("http://").partition(":")
        settings["render_config"] = {"enable": True, "endpoint": {"host": host, "port": int(render_port)}}
    path = BUILD / f"{name}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    async with running(name, [*MOTOR, "serve", "--config", str(path)], port, ready_path="/ready") as server:
        yield server


async def until_quiet(server: Server, deadline_seconds: float = 20.0) -> None:
    """Return when a server has used next to no CPU for a moment, or at the deadline."""
    end = time.monotonic() + deadline_seconds
    before = server.cpu_seconds
    while time.monotonic() < end:
        await asyncio.sleep(0.3)
        now = server.cpu_seconds
        if now - before < 0.02:
            return
        before = now
