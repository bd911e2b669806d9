"""Starts vLLM processes fast: imports vLLM once, then forks one process per command.

Run by the engine environment's Python, so it imports nothing of this project:

    python -P vllm_zygote.py

Almost all of the time that `vllm serve` needs to start on a CPU is the import of torch and vLLM, once in each of its
processes. Here it is paid once. A forked server forks its engine process in turn, which the CPU platform would spawn.

Protocol, one JSON object a line. Standard input, a command:
    {"name": "engine-1", "arguments": ["serve", MODEL, ...], "environment": {...}, "log": PATH}
Standard output, events:
    {"event": "ready", "version": "0.32.0", "seconds": 11.2}
    {"event": "unsupported", "reason": "..."}           then this process ends; start vLLM the ordinary way
    {"event": "started", "name": "engine-1", "pid": 4711}
    {"event": "exited", "pid": 4711, "exit_code": 0}    a negative code is a signal's number
End of input: every forked process gets SIGTERM and this process ends; the same signal reaches them when it dies
in any other way. Each forked process leads its own session.

With MOTOR_NIXL_PROGRESS_THREAD=0 in its environment a forked process makes NIXL agents without a progress thread.

Only for the CPU build on Linux: a process that holds an accelerator's context can't be forked.
"""

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import sys
import time
import traceback
from typing import Any

TESTED_VERSIONS = ("0.28", "0.32")
IMPORTED_MODULES = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.benchmark.main",
    "vllm.entrypoints.cli.collect_env",
    "vllm.entrypoints.cli.launch",
    "vllm.entrypoints.cli.openai",
    "vllm.entrypoints.cli.run_batch",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.launchers.api_server.entry",
    "vllm.entrypoints.launchers.render.entry",
    "vllm.entrypoints.openai.api_server",
    "vllm.model_executor.model_loader",
    "vllm.model_executor.models.llama",
    "vllm.model_executor.models.qwen3",
    "vllm.reasoning",
    "vllm.renderers.online_derenderer",
    "vllm.tool_parsers",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.sample.sampler",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.worker.cpu_worker",
)
PR_SET_PDEATHSIG = 1
NIXL_PROGRESS_THREAD = "MOTOR_NIXL_PROGRESS_THREAD"


class UnsupportedError(Exception):
    """This vLLM can't be forked; the message says why."""


def import_vllm() -> str:
    """Import what servers need, let engine processes be forked, and return vLLM's version.

    Raises:
        UnsupportedError: Not Linux, not a tested version, or not the CPU build.
    """
    if not sys.platform.startswith("linux"):
        raise UnsupportedError(f"forking needs Linux, this is {sys.platform}")
    try:
        version = str(importlib.import_module("vllm").__version__)
    except ImportError as error:
        raise UnsupportedError(f"vLLM can't be imported: {error}") from error
    if not version.startswith(tuple(f"{tested}." for tested in TESTED_VERSIONS)):
        raise UnsupportedError(f"vLLM {version} is not one of the tested versions {', '.join(TESTED_VERSIONS)}")
    platform = importlib.import_module("vllm.platforms").current_platform
    if not platform.is_cpu():
        raise UnsupportedError("this vLLM is not the CPU build")
    for module in IMPORTED_MODULES:
        try:
            importlib.import_module(module)
        except ImportError as error:  # names differ between versions; a server imports what is missing by itself
            print(f"not imported: {module}: {error}", file=sys.stderr)  # noqa: T201 - the log of this process
    _let_engines_be_forked(type(platform))
    return version


def _let_engines_be_forked(platform: Any) -> None:
    """Undo the CPU platform's choice of `spawn`, which it writes into the environment for each configuration."""
    original = platform.check_and_update_config.__func__

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        original(cls, vllm_config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    platform.check_and_update_config = classmethod(check_and_update_config)


def _stop_nixl_from_spinning() -> None:
    """Make NIXL agents without a progress thread, in a process that was told so.

    The thread spins a whole core, idle or not, and vLLM has no option against it. Without it transfers make progress
    when vLLM asks for them, in each step of the engine.
    """
    if os.environ.get(NIXL_PROGRESS_THREAD) != "0":
        return
    try:
        configuration: Any = importlib.import_module("nixl._api").nixl_agent_config
    except ImportError as error:  # a server that needs NIXL says so itself
        print(f"{NIXL_PROGRESS_THREAD} has no effect: {error}", file=sys.stderr)  # noqa: T201 - the log of this process
        return
    original = configuration.__init__

    def configured(self: Any, *arguments: Any, **options: Any) -> None:
        original(self, *arguments, **({} if arguments else {"enable_prog_thread": False}) | options)

    configuration.__init__ = configured


def run_forked(command: dict[str, Any], private_descriptors: list[int]) -> None:
    """Be the command's process; never returns."""
    exit_code = 1
    try:
        os.setsid()
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        log = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for descriptor in (log, nothing, *private_descriptors):
            os.close(descriptor)
        os.environ.update(command["environment"])
        _stop_nixl_from_spinning()
        sys.argv = ["vllm", *command["arguments"]]
        importlib.import_module("vllm.entrypoints.cli.main").main()
        exit_code = 0
    except SystemExit as end:
        exit_code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - a forked process must never return into the parent's loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)


class Zygote:
    """Forks on command and reports ends; mutable: `_children`, `_buffer`."""

    def __init__(self, commands: int, events: int) -> None:
        self._commands = commands
        self._events = events
        self._buffer = b""
        self._children: dict[int, int] = {}  # process descriptor -> pid
        self._selector = selectors.DefaultSelector()

    def tell(self, **event: object) -> None:
        """Write one event."""
        os.write(self._events, json.dumps(event).encode() + b"\n")

    def serve(self) -> None:
        """Run commands until the end of input."""
        self._selector.register(self._commands, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fd != self._commands:
                    self._reap(key.fd)
                elif not self._read():
                    return

    def _read(self) -> bool:
        data = os.read(self._commands, 65536)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._fork(json.loads(line))
        return bool(data)

    def _fork(self, command: dict[str, Any]) -> None:
        pid = os.fork()
        if pid == 0:
            run_forked(command, [self._commands, self._events, self._selector.fileno(), *self._children])
        descriptor = os.pidfd_open(pid)
        self._children[descriptor] = pid
        self._selector.register(descriptor, selectors.EVENT_READ)
        self.tell(event="started", name=command["name"], pid=pid)

    def _reap(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)
        os.close(descriptor)
        pid = self._children.pop(descriptor)
        _, status = os.waitpid(pid, 0)
        self.tell(event="exited", pid=pid, exit_code=os.waitstatus_to_exitcode(status))


def main() -> int:
    """Import, serve, and return the exit code."""
    started = time.monotonic()
    # Whatever vLLM prints goes to the log; the protocol's descriptors are closed in forked processes.
    commands, events = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    zygote = Zygote(commands, events)
    try:
        version = import_vllm()
    except UnsupportedError as error:
        zygote.tell(event="unsupported", reason=str(error))
        return 3
    gc.collect()
    gc.freeze()  # the collector must not touch, and thereby copy, the pages that forked processes share
    zygote.tell(event="ready", version=version, seconds=round(time.monotonic() - started, 1))
    try:
        zygote.serve()
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
