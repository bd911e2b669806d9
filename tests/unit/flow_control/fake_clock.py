"""Time that moves when a test says so."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class FakeTimer:
    when: float
    callback: Callable[[], None]
    is_cancelled: bool = False

    def cancel(self) -> None:
        self.is_cancelled = True


class FakeClock:
    """Stands in for an event loop's time; `timers` are those that are still due."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now
        self._timers: list[FakeTimer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None], /) -> FakeTimer:
        self._timers.append(FakeTimer(when, callback))
        return self._timers[-1]

    @property
    def timers(self) -> list[FakeTimer]:
        self._timers = [timer for timer in self._timers if not timer.is_cancelled]
        return self._timers

    def advance(self, seconds: float) -> None:
        """Move on and make the calls that became due."""
        self.now += seconds
        while due := [timer for timer in self.timers if timer.when <= self.now]:
            first = min(due, key=lambda timer: timer.when)
            first.cancel()
            first.callback()


async def run_ready_tasks() -> None:
    """Let every task go on until it waits for something outside; no time is involved."""
    for _ in range(6):
        await asyncio.sleep(0)
