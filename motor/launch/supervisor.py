"""All children of one stack, in one task group."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from motor.launch.child_spec import ChildSpec, Launcher
from motor.launch.child_state import ChildRecord, ChildState, RestartPolicy
from motor.launch.supervised_child import Observer, SupervisedChild


class Supervisor:
    """Starts children in waves and stops them in reverse; mutable: `_waves`, `_ended`. Made by `supervision`."""

    def __init__(
        self, tasks: asyncio.TaskGroup, observer: Observer, policy: RestartPolicy, clock: Callable[[], float]
    ) -> None:
        self._tasks = tasks
        self._observer = observer
        self._policy = policy
        self._clock = clock
        self._waves: list[dict[SupervisedChild, asyncio.Task[None]]] = []
        self._ended = asyncio.Event()

    @property
    def records(self) -> tuple[ChildRecord, ...]:
        """Every child in the order of starting."""
        return tuple(child.record for wave in self._waves for child in wave)

    async def start(self, specs: Sequence[ChildSpec], launcher: Launcher) -> tuple[ChildRecord, ...]:
        """Start children together and wait until each is ready or has ended.

        Returns:
            Those that are down, as soon as there is one; none when all are ready.
        """
        wave = {}
        for spec in specs:
            child = SupervisedChild(spec, launcher, self._policy, self._observer, self._clock)
            wave[child] = self._tasks.create_task(self._tend(child))
        self._waves.append(wave)
        settling = [self._tasks.create_task(child.settled()) for child in wave]
        for settled in asyncio.as_completed(settling):
            if not await settled:
                break
        return tuple(child.record for child in wave if child.record.state in (ChildState.EXITED, ChildState.STOPPED))

    async def _tend(self, child: SupervisedChild) -> None:
        await child.tend()
        if child.spec.is_vital:
            self._ended.set()

    async def ended(self) -> None:
        """Wait until a vital child has ended."""
        await self._ended.wait()

    async def stop(self) -> None:
        """Stop the last started wave first, each wave together."""
        for wave in reversed(self._waves):
            for child in wave:
                child.stop()
            if wave:
                await asyncio.wait(wave.values())

    def kill(self) -> None:
        """Kill every child at once; `stop` then has nothing to wait for."""
        for wave in self._waves:
            for child in wave:
                child.stop()
                child.kill()


@asynccontextmanager
async def supervision(
    observer: Observer, policy: RestartPolicy, clock: Callable[[], float] = time.monotonic
) -> AsyncIterator[Supervisor]:
    """Open a supervisor; leaving the block stops every child."""
    async with asyncio.TaskGroup() as tasks:
        supervisor = Supervisor(tasks, observer, policy, clock)
        try:
            yield supervisor
        finally:
            await supervisor.stop()
