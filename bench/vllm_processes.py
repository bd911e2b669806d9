"""Real vLLM processes: sidecars with and without the live parsers, and a native engine, forked from one import."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.processes import BUILD, MODEL, MODEL_NAME, Server, StartFault
from motor.launch.child_spec import ChildSpec
from motor.launch.child_state import NO_RESTART, ChildRecord
from motor.launch.engine_environment import find_engine_environment
from motor.launch.fork_server import ForkServer
from motor.launch.ports import free_ports
from motor.launch.supervisor import supervision
from motor.launch.vllm_commands import ModelOptions, engine_arguments, render_arguments, vllm_environment, vllm_program

OPTIONS = ModelOptions(
    model=str(MODEL),
    served_model_name=MODEL_NAME,
    max_model_len=4096,
    tool_call_parser="hermes",
    reasoning_parser="qwen3",
    dtype="float32",
    kv_cache_memory="128M",
    block_size=32,
)
PLUGIN = Path(__file__).parents[1] / "plugins" / "live-parsers"
STOCK, LIVE, ENGINE = "stock-sidecar", "live-sidecar", "engine"


@dataclass
class _Deaths:
    """Remembers how children died; mutable: `lines`."""

    lines: list[str]

    def changed(self, record: ChildRecord) -> None:
        """Nothing to remember."""

    def died(self, record: ChildRecord, reason: str, log_end: list[str]) -> None:
        """Remember the end of the child's log."""
        self.lines += [f"{record.name}: {reason}", *log_end]


@asynccontextmanager
async def vllm_processes(names: Sequence[str]) -> AsyncIterator[dict[str, Server]]:
    """Run some of `STOCK`, `LIVE` and `ENGINE`; `LIVE` is a sidecar with the plugin of this project.

    Raises:
        EngineEnvironmentError: There is no vLLM.
        StartFault: A process did not start.
    """
    engine_environment = find_engine_environment()
    environment = vllm_environment(engine_environment, OPTIONS, num_threads=1, own=os.environ)
    environment["PYTHONPATH"] = str(await _installed_plugin())
    logs = BUILD / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    fork_server = ForkServer(engine_environment.python, logs / "fork-server.log", environment)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    specs = []
    for name, port in ports.items():
        is_engine = name == ENGINE
        specs.append(
            ChildSpec(
                name=name,
                program=vllm_program(engine_environment),
                arguments=engine_arguments(engine_environment, OPTIONS, port)
                if is_engine
                else render_arguments(OPTIONS, port, 1),
                environment={"MOTOR_LIVE_PARSERS_ENABLE": "1" if name == LIVE else "0"},
                log_path=logs / f"{name}.log",
                url=f"http://127.0.0.1:{port}",
                ready_paths=("/health", "/v1/models"),
                ready_timeout_seconds=180.0,
            )
        )
    deaths = _Deaths([])
    try:
        async with supervision(deaths, NO_RESTART) as supervisor:
            if await supervisor.start(specs, fork_server):
                raise StartFault("\n".join(deaths.lines))
            pids = {record.name: record.pid for record in supervisor.records}
            yield {spec.name: Server(spec.name, spec.url, pids[spec.name] or 0) for spec in specs}
    finally:
        await fork_server.close()


async def _installed_plugin() -> Path:
    """Install the live parsers into a folder of their own, so that the engine environment stays as it is."""
    folder = BUILD / "plugin"
    command = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--disable-pip-version-check")
    process = await asyncio.create_subprocess_exec(*command, "--target", str(folder), str(PLUGIN))
    if await process.wait():
        raise StartFault("the live parsers can't be installed")
    return folder
