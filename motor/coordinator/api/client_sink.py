"""The client's side of an exchange: pushed responses, and noticing that nobody reads them."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Send

from motor.coordinator.domain.errors import ClientGone, root_cause


class ClientSink:
    """Writes one ASGI response; mutable: `_head`, `_is_head_sent`, `_blocked_since`.

    `write` returns when the server has taken the bytes; while the client's socket is full, that is when it has room.

    Args:
        send: The server.
        reset: Closes the connection at once and drops what is buffered for it.
    """

    def __init__(self, send: Send, reset: Callable[[], None] = lambda: None) -> None:
        self._send = send
        self._reset = reset
        self._head: tuple[int, list[tuple[bytes, bytes]]] | None = None
        self._is_head_sent = False
        self._blocked_since: float | None = None

    @property
    def has_started(self) -> bool:
        """Whether a status has been decided; it leaves with the first bytes of the body."""
        return self._head is not None

    @property
    def status(self) -> int | None:
        """The status, once decided."""
        return self._head[0] if self._head is not None else None

    @property
    def chain(self) -> str:
        """Which chain answered, as `x-motor-chain` tells the client; `none` if neither did."""
        headers = self._head[1] if self._head is not None else []
        return next((value.decode() for name, value in headers if name == b"x-motor-chain"), "none")

    @property
    def is_event_stream(self) -> bool:
        """Whether the response is server-sent events, so that an error can still be told inside it."""
        headers = self._head[1] if self._head is not None else []
        return any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers
        )

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Decide status and headers.

        Raises:
            RuntimeError: They have been decided before.
        """
        if self._head is not None:
            raise RuntimeError("the response has started")
        self._head = (status, headers)

    async def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        await self._push(data, has_more=True)

    async def finish(self) -> None:
        """End the response."""
        await self._push(b"", has_more=False)

    def abandon(self) -> None:
        """Give the client up: a close would wait until it has read what is buffered, which it may never do."""
        self._reset()

    def blocked_seconds(self) -> float:
        """How long the client has not taken what is being written; 0 if nothing is waiting."""
        return 0.0 if self._blocked_since is None else time.monotonic() - self._blocked_since

    async def _push(self, data: bytes, *, has_more: bool) -> None:
        if self._head is None:
            raise RuntimeError("the response has not started")
        self._blocked_since = time.monotonic()
        if not self._is_head_sent:
            self._is_head_sent = True
            status, headers = self._head
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": data, "more_body": has_more})
        self._blocked_since = None


async def serve_while_connected(
    work: Awaitable[None], receive: Receive, sink: ClientSink, stall_seconds: float
) -> None:
    """Await `work`; cancel it, and wait for its end, when the client goes away or stops reading.

    Raises:
        ClientGone: The client closed the connection, or took nothing for `stall_seconds`.
        BaseException: What `work` raised.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            watcher = tasks.create_task(_watch(receive, sink, stall_seconds))
            await work
            watcher.cancel()
    except BaseExceptionGroup as group:
        raise root_cause(group) from group


async def _watch(receive: Receive, sink: ClientSink, stall_seconds: float) -> None:
    while True:
        try:
            async with asyncio.timeout(max(0.0, stall_seconds - sink.blocked_seconds())):
                message = await receive()
        except TimeoutError:
            if sink.blocked_seconds() >= stall_seconds:
                raise ClientGone("the client reads nothing") from None
            continue
        if message["type"] == "http.disconnect":
            raise ClientGone("the client closed the connection")
