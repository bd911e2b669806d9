"""The simulators' only source of time."""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Time, as the simulators need it; a test may pass its own."""

    def now(self) -> float:
        """Return seconds on a monotonic scale."""
        ...

    def unix_time(self) -> float:
        """Return seconds since the epoch, for `created` fields."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; zero gives other tasks a turn."""
        ...


class RealClock:
    """The machine's time."""

    def now(self) -> float:
        """Return seconds on a monotonic scale."""
        return time.monotonic()

    def unix_time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Wait; zero gives other tasks a turn."""
        await asyncio.sleep(seconds)
