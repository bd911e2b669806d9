"""Writes an engine's events and lets the stream faults happen on the way."""

import asyncio

from aiohttp import web

from motor.simulator.answers import internal_error
from motor.simulator.faults import FaultKind, RequestFaults
from motor.simulator.generate_events import DONE_EVENT, error_event
from motor.simulator.server import reset_connection

_MALFORMED_EVENT = b'data: {"request_id": "broken", "choices": [{"index": 0, \n\n'
_HEADERS = {"Content-Type": "text/event-stream; charset=utf-8"}


class StreamBroken(Exception):
    """A fault ended the stream; nothing more can be written."""


class EventWriter:
    """A streamed answer; `num_events` counts the good events that went out.

    Args:
        request: The request to answer.
        faults: What goes wrong on the way.
    """

    def __init__(self, request: web.Request, faults: RequestFaults) -> None:
        self._request = request
        self._faults = faults
        self.response = web.StreamResponse(headers=_HEADERS)
        self.num_events = 0

    async def start(self) -> None:
        """Send the headers."""
        await self.response.prepare(self._request)

    async def write(self, event: bytes) -> None:
        """Send an event, unless a fault is due.

        Raises:
            StreamBroken: A fault ended the stream.
        """
        if self._faults.by_kind:
            await self._strike()
        await self.response.write(event)
        self.num_events += 1

    async def finish(self) -> None:
        """Send `[DONE]`, unless a fault is due.

        Raises:
            StreamBroken: A fault ended the stream.
        """
        if self._faults.by_kind:
            await self._strike()
        await self.response.write(DONE_EVENT)

    async def fail(self, error: dict[str, object]) -> None:
        """Send vLLM's in-stream error and `[DONE]`."""
        await self.response.write(error_event(error) + DONE_EVENT)

    async def _strike(self) -> None:
        if self._is_due(FaultKind.DIE):
            reset_connection(self._request.transport)
            raise StreamBroken
        if self._is_due(FaultKind.STALL):
            await asyncio.get_running_loop().create_future()
        if self._is_due(FaultKind.EOF):
            raise StreamBroken
        if self._is_due(FaultKind.ERROR_EVENT):
            await self.fail(internal_error().body)
            raise StreamBroken
        malformed = self._faults.get(FaultKind.MALFORMED)
        if malformed is not None and self.num_events == malformed.after:
            await self.response.write(_MALFORMED_EVENT)

    def _is_due(self, kind: FaultKind) -> bool:
        fault = self._faults.get(kind)
        return fault is not None and self.num_events >= fault.after
