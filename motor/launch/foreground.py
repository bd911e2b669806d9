"""Runs a planned stack in the foreground, until a signal or the end of a vital child."""

import asyncio
import signal
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from motor.launch.child_spec import ChildSpec, Launcher
from motor.launch.child_state import ChildRecord, RestartPolicy
from motor.launch.fork_server import FastStartUnavailableError, ForkServer
from motor.launch.local_stack import StackPlan
from motor.launch.subprocess_launcher import SubprocessLauncher
from motor.launch.supervised_child import Observer
from motor.launch.supervisor import Supervisor, supervision

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
Result = TypeVar("Result")


class Audience(Observer, Protocol):
    """Who watches the whole stack."""

    def note(self, text: str) -> None:
        """Something worth a line happened."""

    def ready(self, records: tuple[ChildRecord, ...]) -> None:
        """Every child is ready."""


async def run_in_foreground(
    plan: StackPlan, fork_server: ForkServer | None, policy: RestartPolicy, audience: Audience
) -> bool:
    """Start the stack, keep it up, stop it; a signal stops it cleanly, the same signal again kills it.

    Args:
        fork_server: Starts the peers fast; `None` starts ordinary processes.

    Returns:
        Whether it ended because it was asked to.
    """
    stopping = asyncio.Event()
    async with supervision(audience, policy) as supervisor:
        with _signals(stopping, supervisor, audience):
            try:
                launcher = await _peer_launcher(fork_server, stopping, audience)
                if await _is_up(supervisor, plan.peers, launcher, stopping) and await _is_up(
                    supervisor, (plan.coordinator,), SubprocessLauncher(), stopping
                ):
                    audience.ready(supervisor.records)
                    await _unless(stopping, supervisor.ended())
            finally:
                await supervisor.stop()
                if fork_server is not None:
                    await fork_server.close()
    return stopping.is_set()


async def _peer_launcher(fork_server: ForkServer | None, stopping: asyncio.Event, audience: Audience) -> Launcher:
    if fork_server is None:
        return SubprocessLauncher()
    audience.note("importing vLLM once for all processes")
    reason = await _unless(stopping, _start(fork_server))
    if reason is None:
        return fork_server
    audience.note(f"no fast start, vLLM starts process by process: {reason}")
    return SubprocessLauncher()


async def _start(fork_server: ForkServer) -> str | None:
    try:
        await fork_server.start()
    except FastStartUnavailableError as error:
        return str(error)
    return None


async def _is_up(
    supervisor: Supervisor, wave: tuple[ChildSpec, ...], launcher: Launcher, stopping: asyncio.Event
) -> bool:
    if stopping.is_set():
        return False
    down = await _unless(stopping, supervisor.start(wave, launcher))
    return not stopping.is_set() and not down


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Return what the work returns, or `None` if stopping comes first: the work is cancelled then."""
    async with asyncio.TaskGroup() as tasks:
        working = tasks.create_task(work)
        waiting = tasks.create_task(stopping.wait())
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        waiting.cancel()
    return None if working.cancelled() else working.result()


@contextmanager
def _signals(stopping: asyncio.Event, supervisor: Supervisor, audience: Audience) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    received: set[signal.Signals] = set()

    def receive(number: signal.Signals) -> None:
        # Ctrl-C in a terminal reaches a calling script too, which then sends its own SIGTERM: that is not impatience.
        if number in received:
            audience.note("killing every process")
            supervisor.kill()
        elif not stopping.is_set():
            audience.note("stopping")
            stopping.set()
        received.add(number)

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, receive, number)
    try:
        yield
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)
