"""A simulator's clock that a test moves: time stands still until it says so."""

import asyncio
import time


class StepClock:
    """Every sleep takes one step; mutable: `num_sleeping`, the steps given and whether time runs freely.

    Passed to a simulated engine, a choice's chunks but the first need one step each; passed to a simulated sidecar
    with a delay, each call does.
    """

    def __init__(self) -> None:
        self.num_sleeping = 0
        self._steps = asyncio.Semaphore(0)
        self._is_running = False

    def step(self, num: int = 1) -> None:
        """Let so many sleeps end."""
        for _ in range(num):
            self._steps.release()

    def run(self) -> None:
        """Let time run: sleeps end at once from now on."""
        self._is_running = True
        self.step(self.num_sleeping)

    def hold(self) -> None:
        """Let time stand still again."""
        self._is_running = False

    def now(self) -> float:
        """Return seconds on a monotonic scale."""
        return time.monotonic()

    def unix_time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait for a step."""
        if self._is_running:
            await asyncio.sleep(0)
            return
        self.num_sleeping += 1
        try:
            await self._steps.acquire()
        finally:
            self.num_sleeping -= 1
