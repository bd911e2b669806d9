"""Children as forks of one process that has imported vLLM already (the other side of `vllm_zygote.py`)."""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from motor.launch.child_spec import ChildSpec, RunningProcess
from motor.launch.log_tail import last_lines

ZYGOTE_SCRIPT = Path(__file__).with_name("vllm_zygote.py")
IMPORT_TIMEOUT_SECONDS = 300.0
STOP_TIMEOUT_SECONDS = 5.0
LOST_EXIT_CODE = -9
"""Reported for children of a fork server that died: they are sent a signal, but nobody can see their end."""


class FastStartUnavailableError(Exception):
    """This engine environment can't be forked; the message says why. Ordinary processes work."""


class ForkedProcess:
    """A forked process; its end is told by the fork server."""

    def __init__(self, pid: int, exit_code: asyncio.Future[int]) -> None:
        self._pid = pid
        self._exit_code = exit_code

    @property
    def pid(self) -> int:
        """Return the process id, which is the group's id too."""
        return self._pid

    async def wait(self) -> int:
        """Return the exit code when the process has ended; negative is a signal's number."""
        return await asyncio.shield(self._exit_code)


class _Conversation(asyncio.SubprocessProtocol):
    """What a zygote has said so far; mutable: `_buffer`, `_started`, `_exited`, `ready`, `ended`."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[str] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._loop = loop
        self._buffer = b""
        self._started: dict[str, asyncio.Future[ForkedProcess]] = {}
        self._exited: dict[int, asyncio.Future[int]] = {}

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take events from standard output."""
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "ready":
                self.ready.set_result(event["version"])
            case "unsupported":
                self.ready.set_exception(FastStartUnavailableError(event["reason"]))
            case "started":
                exited = self._exited[event["pid"]] = self._loop.create_future()
                self._started.pop(event["name"]).set_result(ForkedProcess(event["pid"], exited))
            case "exited":
                self._exited.pop(event["pid"]).set_result(event["exit_code"])

    def process_exited(self) -> None:
        """Fail everything that waits: no more events will come."""
        self.ended.set_result(None)
        if not self.ready.done():
            self.ready.set_exception(FastStartUnavailableError("the import of vLLM failed"))
        for started in self._started.values():
            started.set_exception(ConnectionError("the fork server has ended"))
        for exited in self._exited.values():
            exited.set_result(LOST_EXIT_CODE)
        self._started.clear()
        self._exited.clear()

    def expect_start(self, name: str) -> asyncio.Future[ForkedProcess]:
        """Return the future process of the child called `name`."""
        self._started[name] = self._loop.create_future()
        return self._started[name]


class ForkServer:
    """Launches vLLM children by forking; mutable: `_transport`, `_conversation`.

    Args:
        python: The engine environment's interpreter.
        log_path: Where the fork server's own output goes.
        environment: Added to the environment of the parent; forked children inherit it.
    """

    def __init__(self, python: Path, log_path: Path, environment: Mapping[str, str]) -> None:
        self._python = python
        self._log_path = log_path
        self._environment = environment
        self._starting = asyncio.Lock()
        self._transport: asyncio.SubprocessTransport | None = None
        self._conversation: _Conversation | None = None

    @property
    def pid(self) -> int | None:
        """Return the fork server's process id."""
        return None if self._transport is None else self._transport.get_pid()

    async def start(self) -> str:
        """Start the process, wait until it has imported vLLM, and return vLLM's version.

        Raises:
            FastStartUnavailableError: It can't or won't fork this vLLM.
        """
        with self._log_path.open("ab") as log:
            self._transport, self._conversation = await asyncio.get_running_loop().subprocess_exec(
                _Conversation,
                self._python,
                "-P",  # this script's folder must not shadow packages of the engine environment
                ZYGOTE_SCRIPT,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )
        try:
            async with asyncio.timeout(IMPORT_TIMEOUT_SECONDS):
                return await self._conversation.ready
        except TimeoutError as error:
            raise FastStartUnavailableError(f"no import of vLLM within {IMPORT_TIMEOUT_SECONDS:.0f} s") from error
        except FastStartUnavailableError as error:
            raise FastStartUnavailableError("\n".join([str(error), *last_lines(self._log_path, 5)])) from error

    async def launch(self, spec: ChildSpec) -> RunningProcess:
        """Fork a process that runs `vllm` with the child's arguments; a fork server that has died is started anew.

        Raises:
            ConnectionError: The fork server has ended or does not start.
        """
        async with self._starting:  # children that restart together share one new fork server
            if self._conversation is None or self._conversation.ended.done():
                try:
                    await self.start()
                except FastStartUnavailableError as error:
                    raise ConnectionError(str(error)) from error
        conversation, transport = self._conversation, self._transport
        if conversation is None or transport is None:
            raise ConnectionError("the fork server is closed")
        command = {
            "name": spec.name,
            "arguments": list(spec.arguments),
            "environment": dict(spec.environment),
            "log": str(spec.log_path.resolve()),
        }
        starting = conversation.expect_start(spec.name)
        _pipe(transport).write(json.dumps(command).encode() + b"\n")
        return await starting

    async def close(self) -> None:
        """End the fork server; children that are still there get SIGTERM."""
        if self._transport is None or self._conversation is None:
            return
        _pipe(self._transport).close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_SECONDS):
                await asyncio.shield(self._conversation.ended)
        except TimeoutError:
            self._transport.kill()
        self._transport.close()


def _pipe(transport: asyncio.SubprocessTransport) -> asyncio.WriteTransport:
    pipe = transport.get_pipe_transport(0)
    if not isinstance(pipe, asyncio.WriteTransport):
        raise ConnectionError("the fork server has no input")
    return pipe
