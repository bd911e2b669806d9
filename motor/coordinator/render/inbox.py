"""A choice's waiting engine chunks: bounded, taken by as many as may go into one call."""

import asyncio
from collections import deque
from collections.abc import Sequence

from motor.coordinator.domain.generation import GenerateChoice


class Inbox:
    """A bounded queue between one producer and one consumer; mutable: everything.

    Args:
        capacity: How many chunks may wait; a full inbox stops the producer, and so the engine's socket.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._waiting: deque[GenerateChoice] = deque()
        self._is_closed = False
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._has_news = asyncio.Event()
        self._is_ending = asyncio.Event()
        self._is_drained = asyncio.Event()
        self._is_drained.set()

    async def put(self, choice: GenerateChoice) -> None:
        """Add a chunk; waits while the inbox is full."""
        while len(self._waiting) >= self._capacity:
            self._has_room.clear()
            await self._has_room.wait()
        self._waiting.append(choice)
        self._is_drained.clear()
        self._has_news.set()
        if choice.finish_reason is not None:
            self._is_ending.set()

    def close(self) -> None:
        """No more chunks will come."""
        self._is_closed = True
        self._has_news.set()
        self._is_ending.set()

    async def waiting(self) -> Sequence[GenerateChoice]:
        """Return the waiting chunks, at least one; none after `close` when all were taken."""
        while not self._waiting and not self._is_closed:
            self._has_news.clear()
            await self._has_news.wait()
        return self._waiting

    def take(self, num: int) -> list[GenerateChoice]:
        """Remove and return the first `num` chunks."""
        taken = [self._waiting.popleft() for _ in range(num)]
        self._has_room.set()
        return taken

    def mark_drained(self) -> None:
        """The consumer has shown all that it took."""
        if not self._waiting:
            self._is_drained.set()

    async def drained(self) -> None:
        """Return when every chunk put so far has been shown."""
        await self._is_drained.wait()

    async def rest(self, seconds: float) -> None:
        """Wait, but no longer than until the last chunk has come."""
        try:
            async with asyncio.timeout(seconds):
                await self._is_ending.wait()
        except TimeoutError:
            return
