"""The Render sidecar and engines, real vLLM processes on loopback, for one test session."""

import asyncio
import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from motor.launch.child_spec import ChildSpec
from motor.launch.engine_environment import EngineEnvironment, find_engine_environment
from motor.launch.ports import free_ports
from motor.launch.vllm_commands import ModelOptions, engine_arguments, render_arguments, vllm_environment, vllm_program
from tests.real.processes import Processes, processes

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
LEASE_SECONDS = 9
"""How long a prefill engine keeps blocks that no decode comes for; vLLM's own 30 would make tests slow."""
NIXL_ENVIRONMENT = {
    "UCX_NET_DEVICES": "lo",
    "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
    "MOTOR_NIXL_PROGRESS_THREAD": "0",  # it spins: two idle engines would take two cores
}


@dataclass(frozen=True)
class PrefillDecode:
    """URLs of two engines that hand KV blocks over by NIXL."""

    prefill: str
    decode: str


@dataclass(frozen=True)
class SpareEngine:
    """An engine that may be killed; the next one to ask gets another."""

    url: str
    kill: Callable[[], None]


class RealStack:
    """The running processes; mutable: `_pair`, `_spare`.

    Attributes:
        render: The sidecar, with the hermes and qwen3 parsers.
        engine: An engine with the same parsers: token-only generate and the native API.
        tokens_engine: An engine without tokenizer, `--tokens-only`.
    """

    model_name = OPTIONS.served_model_name
    model_path = MODEL

    def __init__(self, children: Processes, environment: EngineEnvironment) -> None:
        self._children = children
        self._environment = environment
        self._numbers = itertools.count(1)
        self._pair: PrefillDecode | None = None
        self._spare: ChildSpec | None = None
        (port,) = free_ports(1)
        specs = (
            self._spec("render", port, render_arguments(OPTIONS, port, 2)),
            self._engine("engine"),
            self._engine("tokens-engine", tokens_only=True),
        )
        children.start_all(specs)
        self.render, self.engine, self.tokens_engine = (spec.url for spec in specs)

    def pair(self) -> PrefillDecode:
        """Return a prefill and a decode engine; the first call starts them.

        Raises:
            RuntimeError: They don't start, because NIXL is missing, say.
        """
        if self._pair is None:
            specs = (self._nixl_engine("prefill", "kv_producer"), self._nixl_engine("decode", "kv_consumer"))
            self._children.start_all(specs)
            self._pair = PrefillDecode(*(spec.url for spec in specs))
        return self._pair

    def spare(self) -> SpareEngine:
        """Return an engine like `engine` that may be killed; it is started if there is none, or no longer."""
        spec = self._spare
        if spec is None or not self._children.is_ready(spec.name):
            self._spare = spec = self._engine(f"spare-{next(self._numbers)}")
            self._children.start_all([spec])
        name = spec.name
        return SpareEngine(spec.url, lambda: self._children.kill(name))

    def _nixl_engine(self, name: str, role: str) -> ChildSpec:
        transfer = {
            "kv_connector": "NixlConnector",
            "kv_role": role,
            "kv_buffer_device": "cpu",
            "kv_connector_extra_config": {"kv_lease_duration": LEASE_SECONDS},
        }
        (side_port,) = free_ports(1)
        side = {"VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_port)}
        extra = ("--kv-transfer-config", json.dumps(transfer))
        return self._engine(name, extra=extra, environment=NIXL_ENVIRONMENT | side)

    def _engine(
        self,
        name: str,
        *,
        tokens_only: bool = False,
        extra: tuple[str, ...] = (),
        environment: dict[str, str] | None = None,
    ) -> ChildSpec:
        (port,) = free_ports(1)
        arguments = engine_arguments(self._environment, OPTIONS, port, tokens_only=tokens_only, extra=extra)
        return self._spec(name, port, arguments, environment or {})

    def _spec(
        self, name: str, port: int, arguments: tuple[str, ...], environment: dict[str, str] | None = None
    ) -> ChildSpec:
        return ChildSpec(
            name=name,
            program=vllm_program(self._environment),
            arguments=arguments,
            log_path=self._children.log_directory / f"{name}.log",
            url=f"http://127.0.0.1:{port}",
            ready_paths=("/health", "/v1/models"),
            environment=environment or {},
            ready_timeout_seconds=120.0,
        )

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
        """Return when the engine runs and queues no request and holds no KV block for one.

        Raises:
            AssertionError: It still does at the deadline.
        """
        held: dict[str, float] = {}
        try:
            async with asyncio.timeout(deadline_seconds):
                while True:
                    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
                        held[name] = await self.metric(url, name)
                    if not any(held.values()):
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise AssertionError(f"{url} is not idle: {held}") from error


@contextmanager
def running_stack(log_directory: Path) -> Iterator[RealStack]:
    """Start the sidecar and two engines, yield them, stop everything.

    Raises:
        EngineEnvironmentError: There is no engine environment.
        RuntimeError: A process ended before it was ready.
    """
    environment = find_engine_environment()
    variables = vllm_environment(environment, OPTIONS, num_threads=1, own=os.environ)
    with processes(environment.python, variables, log_directory) as children:
        yield RealStack(children, environment)
