"""The Render sidecar and two engines, real vLLM processes on loopback, for one test session."""

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from motor.launch.child_spec import ChildSpec
from motor.launch.child_state import NO_RESTART, ChildRecord
from motor.launch.engine_environment import EngineEnvironment, find_engine_environment
from motor.launch.fork_server import ForkServer
from motor.launch.ports import free_ports
from motor.launch.supervisor import supervision
from motor.launch.vllm_commands import ModelOptions, engine_arguments, render_arguments, vllm_environment, vllm_program

MODEL = Path(__file__).parents[2] / "models" / "tiny-qwen3"
OPTIONS = ModelOptions(
    model=str(MODEL),
    served_model_name="tiny",
    max_model_len=2048,
    tool_call_parser="hermes",
    reasoning_parser="qwen3",
    dtype="float32",
    kv_cache_memory="64M",
    block_size=32,
)
IDLE_DEADLINE_SECONDS = 15.0


@dataclass
class DeathLog:
    """Remembers how children died; mutable: `lines`."""

    lines: list[str] = field(default_factory=list)

    def changed(self, record: ChildRecord) -> None:
        """Nothing to remember."""

    def died(self, record: ChildRecord, reason: str, log_end: list[str]) -> None:
        """Remember the end of the child's log."""
        self.lines += [f"{record.name}: {reason}", *(f"  {line}" for line in log_end)]


@dataclass(frozen=True)
class RealStack:
    """URLs of the running processes.

    Attributes:
        render: The sidecar, with the hermes and qwen3 parsers.
        engine: An engine with the same parsers: token-only generate and the native API.
        tokens_engine: An engine without tokenizer, `--tokens-only`.
    """

    render: str
    engine: str
    tokens_engine: str
    model_name: str = OPTIONS.served_model_name
    model_path: Path = MODEL

    async def metric(self, url: str, name: str, **labels: str) -> float:
        """Return the sum of an engine's samples of `name` (without `vllm:`) that carry the labels."""
        async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as answer:
            answer.raise_for_status()
            text = await answer.text()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        samples = [
            float(line.rpartition(" ")[2])
            for line in text.splitlines()
            if line.startswith((f"vllm:{name}{{", f"vllm:{name} ")) and all(label in line for label in wanted)
        ]
        if not samples:
            raise LookupError(f"{url} has no metric vllm:{name} {labels or ''}")
        return sum(samples)

    async def wait_until_idle(self, url: str, deadline_seconds: float = IDLE_DEADLINE_SECONDS) -> None:
        """Return when the engine runs and queues no request.

        Raises:
            AssertionError: It still does at the deadline.
        """
        try:
            async with asyncio.timeout(deadline_seconds):
                while True:
                    running = await self.metric(url, "num_requests_running")
                    waiting = await self.metric(url, "num_requests_waiting")
                    if not running and not waiting:
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise AssertionError(f"{url} is not idle: {running=:.0f} {waiting=:.0f}") from error


@contextmanager
def running_stack(log_directory: Path) -> Iterator[RealStack]:
    """Start everything, yield the URLs, stop everything.

    The processes are supervised by a thread with its own event loop, because tests have one loop each.

    Raises:
        EngineEnvironmentError: There is no engine environment.
        RuntimeError: A process ended before it was ready.
    """
    thread = _StackThread(find_engine_environment(), log_directory)
    thread.start()
    try:
        yield thread.wait_ready()
    finally:
        thread.stop()


class _StackThread(threading.Thread):
    def __init__(self, environment: EngineEnvironment, log_directory: Path) -> None:
        super().__init__(name="real-stack")
        self._environment = environment
        self._log_directory = log_directory
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._settled = threading.Event()
        self._stack: RealStack | None = None
        self._failure = "the supervising thread ended"

    def run(self) -> None:
        try:
            asyncio.run(self._supervise())
        finally:
            self._settled.set()

    async def _supervise(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        environment = vllm_environment(self._environment, OPTIONS, num_threads=1, own=os.environ)
        fork_server = ForkServer(self._environment.python, self._log_directory / "fork-server.log", environment)
        deaths = DeathLog()
        specs = self._specs()
        try:
            async with supervision(deaths, NO_RESTART) as supervisor:
                if await supervisor.start(specs, fork_server):
                    self._failure = "\n".join(deaths.lines)
                    return
                self._stack = RealStack(*(spec.url for spec in specs))
                self._settled.set()
                await self._stopping.wait()
        finally:
            await fork_server.close()

    def _specs(self) -> list[ChildSpec]:
        render, engine, tokens = free_ports(3)
        arguments = {
            "render": (render, render_arguments(OPTIONS, render, 2)),
            "engine": (engine, engine_arguments(self._environment, OPTIONS, engine)),
            "tokens-engine": (tokens, engine_arguments(self._environment, OPTIONS, tokens, tokens_only=True)),
        }
        return [
            ChildSpec(
                name=name,
                program=vllm_program(self._environment),
                arguments=told,
                log_path=self._log_directory / f"{name}.log",
                url=f"http://127.0.0.1:{port}",
                ready_paths=("/health", "/v1/models"),
                ready_timeout_seconds=120.0,
            )
            for name, (port, told) in arguments.items()
        ]

    def wait_ready(self) -> RealStack:
        self._settled.wait()
        if self._stack is None:
            raise RuntimeError(f"the real stack did not start\n{self._failure}")
        return self._stack

    def stop(self) -> None:
        if self._loop is not None and self._stopping is not None and self.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self.join()
