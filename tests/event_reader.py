"""A client that reads a streamed answer event by event."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from tests.deployment import Deployment

DONE = "[DONE]"


class EventReader:
    """One answer, read at the test's pace."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = response.headers

    async def next(self) -> Any:
        """Return the next event, `[DONE]` as text; `None` at the end of the body."""
        event = await self._response.content.readuntil(b"\n\n")
        if not event:
            return None
        assert event.startswith(b"data: ")
        assert event.endswith(b"\n\n"), "the body ends in the middle of an event"
        payload = event[6:-2].decode()
        return payload if payload == DONE else json.loads(payload)

    async def take(self, num: int) -> list[Any]:
        """Return the next events."""
        return [await self.next() for _ in range(num)]

    async def rest(self) -> list[Any]:
        """Return all further events."""
        events = []
        while (event := await self.next()) is not None:
            events.append(event)
        return events


@asynccontextmanager
async def open_stream(d: Deployment, path: str, body: dict[str, Any]) -> AsyncIterator[EventReader]:
    """Send a request and read its answer as it comes; leaving the block closes the connection."""
    async with d.http.post(d.url + path, json={**body, "stream": True}) as response:
        yield EventReader(response)
        response.close()
