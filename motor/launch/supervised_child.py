"""One child: started, watched until it is ready, restarted when it dies, stopped for good."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from motor.launch.child_spec import ChildSpec, Launcher, RunningProcess
from motor.launch.child_state import ChildEvent, ChildRecord, ChildState, RestartPolicy
from motor.launch.log_tail import last_lines
from motor.launch.readiness import poll_until_ready

REPORTED_LINES = 20


class Observer(Protocol):
    """Who is told about children."""

    def changed(self, record: ChildRecord) -> None:
        """A child entered another state."""

    def died(self, record: ChildRecord, reason: str, log_end: list[str]) -> None:
        """A child ended without being asked to."""


class SupervisedChild:
    """Tends one child; mutable: `_record`, `_process`, `_stopping`, `_settled`.

    Args:
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        spec: ChildSpec,
        launcher: Launcher,
        policy: RestartPolicy,
        observer: Observer,
        clock: Callable[[], float],
    ) -> None:
        self.spec = spec
        self._launcher = launcher
        self._policy = policy
        self._observer = observer
        self._clock = clock
        self._record = ChildRecord(spec.name, spec.url, clock())
        self._process: RunningProcess | None = None
        self._stopping = asyncio.Event()
        self._settled = asyncio.Event()

    @property
    def record(self) -> ChildRecord:
        """What is known of the child now."""
        return self._record

    async def settled(self) -> bool:
        """Wait until the child has become ready for the first time or has ended, and return whether it is ready."""
        await self._settled.wait()
        return self._record.state is ChildState.READY

    async def tend(self) -> None:
        """Run the child until it is stopped or stays down. Cancellation kills it."""
        try:
            while not self._stopping.is_set():
                await self._run_once()
                if not await self._pause_before_restart():
                    return
        finally:
            self.kill()
            self._settled.set()

    async def _run_once(self) -> None:
        self._move(ChildEvent.LAUNCH)
        try:
            process = await self._launcher.launch(self.spec)
        except OSError as error:
            self._move(ChildEvent.EXIT)
            self._observer.died(self._record, f"can't be started: {error}", [])
            return
        self._process = process
        self._record = replace(self._record, pid=process.pid)
        self._observer.changed(self._record)
        reason = await self._watch(process)
        self._process = None
        # What the process left behind in its group: a worker that outlives its server would keep its memory and ports.
        _signal_group(process.pid, signal.SIGKILL)
        if self._record.state is not ChildState.STOPPED:
            self._observer.died(self._record, reason, last_lines(self.spec.log_path, REPORTED_LINES))

    async def _watch(self, process: RunningProcess) -> str:
        """Wait for the end of the process and return what ended it."""
        readiness: list[str] = []
        async with asyncio.TaskGroup() as tasks:
            polling = tasks.create_task(self._await_readiness(process.pid, readiness))
            stopping = tasks.create_task(self._end_when_stopped(process))
            exit_code = await process.wait()
            polling.cancel()
            stopping.cancel()
        self._move(ChildEvent.EXIT, exit_code)
        return readiness[0] if readiness else describe_exit(exit_code)

    async def _await_readiness(self, pid: int, failure: list[str]) -> None:
        try:
            async with asyncio.timeout(self.spec.ready_timeout_seconds):
                await poll_until_ready(self.spec.url, self.spec.ready_paths)
        except TimeoutError:
            failure.append(f"not ready after {self.spec.ready_timeout_seconds:.0f} s")
            _signal_group(pid, signal.SIGKILL)
            return
        if self._record.state is ChildState.STARTING:
            self._move(ChildEvent.ANSWER)
            self._settled.set()

    async def _end_when_stopped(self, process: RunningProcess) -> None:
        await self._stopping.wait()
        self._move(ChildEvent.STOP)
        # Only the leader: it ends its workers in its own order. Whoever is left is killed with the group.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM)
        await asyncio.sleep(self.spec.stop_timeout_seconds)
        _signal_group(process.pid, signal.SIGKILL)

    async def _pause_before_restart(self) -> bool:
        """Return whether the child is to run again, after the pause that the policy wants."""
        delay = None if self.spec.is_vital else self._policy.delay_seconds(self._record)
        if self._record.state is not ChildState.EXITED or delay is None:
            return False
        self._move(ChildEvent.RETRY)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await self._stopping.wait()
                self._move(ChildEvent.STOP)
        return not self._stopping.is_set()

    def stop(self) -> None:
        """Ask for the end; `tend` returns when it is reached, at the latest after the child's stop timeout."""
        self._stopping.set()
        if self._record.state is ChildState.WAITING:
            self._move(ChildEvent.STOP)

    def kill(self) -> None:
        """Kill the process and its group at once, if there is one."""
        if self._process is not None:
            _signal_group(self._process.pid, signal.SIGKILL)

    def _move(self, event: ChildEvent, exit_code: int | None = None) -> None:
        self._record = self._record.after(event, self._clock(), exit_code)
        self._observer.changed(self._record)


def describe_exit(exit_code: int) -> str:
    """Return an exit code in words."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"ended by signal {-exit_code}"


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)
