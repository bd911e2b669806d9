"""SIGTERM to a real `motor serve` with open streams: they may go on for the grace time, then it ends."""

import asyncio
import json
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from motor.simulator import EngineSimulator, ModelFolder, RenderSimulator
from tests.deployment import CHAT, MODEL, QUIET, eventually, expected_script, user
from tests.step_clock import StepClock

_PATIENCE_SECONDS = 30.0
"""For what a process does in a moment, on a machine that has much else to do."""

BODY = user("Tell me a long story.", stream=True, **QUIET)


@dataclass
class Served:
    """A Coordinator in a process of its own, and its peers here."""

    process: asyncio.subprocess.Process
    url: str
    engine: EngineSimulator
    clock: StepClock
    http: aiohttp.ClientSession


@asynccontextmanager
async def served(folder: Path, grace_seconds: int) -> AsyncIterator[Served]:
    """Run `motor serve`; leaving kills what is left of it."""
    model, clock = ModelFolder(MODEL), StepClock()
    constants: dict[str, Any] = {"served_model_name": "tiny", "max_model_len": 2048}
    async with AsyncExitStack() as stack:
        simulated = EngineSimulator(model=model, script=expected_script(model), clock=clock, **constants)
        engine = await stack.enter_async_context(simulated)
        sidecar = await stack.enter_async_context(RenderSimulator(model=model, **constants))
        port, management_port = free_ports(2)
        settings = {
            "api": {"host": "127.0.0.1", "port": port, "shutdown_grace_seconds": grace_seconds},
            "management": {"port": management_port},
            "model": {"served_model_name": "tiny", "path": str(MODEL)},
            "render_config": {"enable": True, "endpoint": {"port": sidecar.port}},
            "instances": [{"id": "e", "role": "union", "url": engine.url}],
        }
        config = folder / "motor.json"
        config.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "motor.cli", "serve", "--config", str(config)]
        log = stack.enter_context((folder / "motor.log").open("wb"))
        process = await asyncio.create_subprocess_exec(*command, stderr=log)
        clock.run()  # while the Coordinator gets to know its peers
        try:
            http = await stack.enter_async_context(aiohttp.ClientSession())
            url = f"http://127.0.0.1:{port}"
            await until_ready(http, url)
            await eventually(lambda: engine.stats.requests["completions"] > 0 and not engine.stats.num_open, "known")
            clock.hold()
            yield Served(process, url, engine, clock, http)
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


def free_ports(num: int) -> list[int]:
    """Return ports that are free now; the Coordinator takes them by number."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(num)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


async def until_ready(http: aiohttp.ClientSession, url: str) -> None:
    """Wait until it serves."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            try:
                async with http.get(url + "/ready") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.02)  # another process: nothing here tells when it listens


async def test_streams_end_within_the_grace_time(tmp_path: Path) -> None:
    async with served(tmp_path, grace_seconds=20) as s:
        responses = [await s.http.post(s.url + CHAT, json=BODY) for _ in range(10)]
        s.process.send_signal(signal.SIGTERM)
        await refuses_connections(s)
        assert s.process.returncode is None  # ten clients are being served
        s.clock.run()
        bodies = [await response.read() for response in responses]
        assert all(body.endswith(b"data: [DONE]\n\n") for body in bodies)
        async with asyncio.timeout(_PATIENCE_SECONDS):
            assert await s.process.wait() == 0
        await eventually(lambda: s.engine.stats.num_open == 0, "the engine is idle")


async def test_after_the_grace_time_it_ends_all_the_same(tmp_path: Path) -> None:
    async with served(tmp_path, grace_seconds=1) as s:
        responses = [await s.http.post(s.url + CHAT, json=BODY) for _ in range(50)]
        assert [response.status for response in responses] == [200] * 50
        s.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(_PATIENCE_SECONDS):
            assert await s.process.wait() == 0
        await eventually(lambda: s.engine.stats.num_open == 0, "the engine's requests are cancelled")
        assert "Traceback" not in (tmp_path / "motor.log").read_text()
        for response in responses:
            *_, failure, done, end = (await response.read()).split(b"\n\n")
            assert json.loads(failure[6:])["error"]["message"] == "the server is shutting down"
            assert (done, end) == (b"data: [DONE]", b"")


async def refuses_connections(s: Served) -> None:
    """Wait until it has stopped listening."""
    async with asyncio.timeout(_PATIENCE_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", int(s.url.rpartition(":")[2]))
            except ConnectionError:
                return
            writer.close()
            await asyncio.sleep(0.02)  # as above
