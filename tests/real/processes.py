"""Real vLLM processes of one test session: forks of one process that has imported vLLM."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from motor.launch.child_spec import ChildSpec
from motor.launch.child_state import NO_RESTART, ChildRecord, ChildState
from motor.launch.fork_server import ForkServer
from motor.launch.supervisor import Supervisor, supervision


@dataclass
class DeathLog:
    """Remembers how children died; mutable: `lines`."""

    lines: list[str] = field(default_factory=list)

    def changed(self, record: ChildRecord) -> None:
        """Nothing to remember."""

    def died(self, record: ChildRecord, reason: str, log_end: list[str]) -> None:
        """Remember the end of the child's log."""
        self.lines += [f"{record.name}: {reason}", *(f"  {line}" for line in log_end)]


class Processes(threading.Thread):
    """Supervises children in a thread with its own event loop, because tests have one loop each.

    Mutable: `_loop`, `_supervisor`. Made by `processes`.
    """

    def __init__(self, python: Path, environment: Mapping[str, str], log_directory: Path) -> None:
        super().__init__(name="real-processes")
        self.log_directory = log_directory
        self._python = python
        self._environment = environment
        self._deaths = DeathLog()
        self._opened = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closing: asyncio.Event | None = None
        self._fork_server: ForkServer | None = None
        self._supervisor: Supervisor | None = None

    def run(self) -> None:
        """Supervise until `close`."""
        try:
            asyncio.run(self._supervise())
        finally:
            self._opened.set()

    async def _supervise(self) -> None:
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        self._fork_server = ForkServer(self._python, self.log_directory / "fork-server.log", self._environment)
        try:
            async with supervision(self._deaths, NO_RESTART) as self._supervisor:
                self._opened.set()
                await self._closing.wait()
        finally:
            await self._fork_server.close()

    def start_all(self, specs: Sequence[ChildSpec]) -> None:
        """Start children together and return when all are ready.

        Raises:
            RuntimeError: One of them ended before that.
        """
        self._opened.wait()
        if self._loop is None:
            raise RuntimeError("the supervising thread has ended")
        asyncio.run_coroutine_threadsafe(self._start_all(specs), self._loop).result()

    async def _start_all(self, specs: Sequence[ChildSpec]) -> None:
        if self._supervisor is None or self._fork_server is None:
            raise RuntimeError("the supervising thread is not open")
        self._deaths.lines.clear()
        if await self._supervisor.start(specs, self._fork_server):
            raise RuntimeError("a vLLM process did not start\n" + "\n".join(self._deaths.lines))

    def record(self, name: str) -> ChildRecord:
        """Return what is known of a child that was started."""
        records = () if self._supervisor is None else self._supervisor.records
        return next(record for record in records if record.name == name)

    def is_ready(self, name: str) -> bool:
        """Whether the child is running."""
        return self.record(name).state is ChildState.READY

    def kill(self, name: str) -> None:
        """Send SIGKILL to a child's process group."""
        pid = self.record(name).pid
        if pid is None:
            raise ProcessLookupError(f"{name} is not running")
        os.killpg(pid, signal.SIGKILL)

    def close(self) -> None:
        """Stop every child and the thread."""
        self._opened.wait()
        if self._loop is not None and self._closing is not None and self.is_alive():
            self._loop.call_soon_threadsafe(self._closing.set)
        self.join()


@contextmanager
def processes(python: Path, environment: Mapping[str, str], log_directory: Path) -> Iterator[Processes]:
    """Open the supervising thread; leaving the block stops every child."""
    thread = Processes(python, environment, log_directory)
    thread.start()
    try:
        yield thread
    finally:
        thread.close()
