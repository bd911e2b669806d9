"""One client connection: HTTP/1.1 framing by httptools, one exchange at a time, as little work per packet as goes."""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from motor.coordinator.transport.faults import TransportFault, TransportFaultKind

MAX_HEAD_BYTES = 256 * 1024
BUFFERED_BYTES = 16 * 1024
"""Body bytes that wait for their reader before the connection stops reading from the peer."""

_BODILESS = frozenset({204, 304})


class HttpConnection(asyncio.BufferedProtocol):
    """Sends one request after the other; mutable: everything about the present exchange, and whether it is closed.

    The deadline of waiting is kept by one timer that is moved only when it fires, because a stream waits for every
    packet and its deadline almost never passes.

    Args:
        read_buffer: What packets are read into. All connections of a loop may share one: a packet is parsed at once.
    """

    def __init__(self, read_buffer: memoryview) -> None:
        self._read_buffer = read_buffer
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: float | None = None
        self._is_paused = False
        self._is_busy = False
        self.is_closed = False
        self.idle_since = 0.0
        self._begin()

    def _begin(self) -> None:
        """Forget the exchange before."""
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._num_buffered = 0
        self._num_head_bytes = 0
        self._fault: TransportFault | None = None
        self._ends_with_connection = False
        self._is_kept = False
        self.status = 0
        self.raw_headers: list[tuple[bytes, bytes]] = []
        self.has_bytes = False
        self.has_head = False
        self.is_complete = False

    def send(self, message: tuple[bytes, ...]) -> None:
        """Begin an exchange: write a request, whose answer is read by `wait_head` and `read_some`."""
        self._begin()
        self._is_busy = True
        if self._transport is None or self.is_closed:
            self._fail(TransportFaultKind.RESET, "connection closed by the peer")
        else:
            self._transport.writelines(message)

    async def wait_head(self, deadline: float | None) -> None:
        """Return when status and headers are there.

        Args:
            deadline: On the loop's clock.

        Raises:
            TransportFault: They can't come any more, or not in time.
        """
        while not self.has_head:
            await self._wait(deadline)

    async def read_some(self, deadline: float | None) -> bytes:
        """Return the body bytes that have arrived, at least one; `b""` at the end of the body.

        Raises:
            TransportFault: The connection broke, or nothing came in time.
        """
        while not self._pieces:
            if self.is_complete:
                return b""
            await self._wait(deadline)
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces, self._num_buffered = [], 0
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    def finish(self, now: float) -> bool:
        """End the exchange; return whether the connection can serve another. If not, it is closed."""
        self._is_busy = False
        if self.is_complete and self._is_kept and not self.is_closed and not self._pieces:
            self.idle_since = now
            return True
        self.close()
        return False

    def close(self) -> None:
        """Close at once; a peer that is still answering notices it."""
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()

    async def _wait(self, deadline: float | None) -> None:
        if self._fault is not None:
            raise self._fault
        self._deadline = deadline
        if deadline is not None and (self._timer is None or self._timer.when() > deadline):
            self._set_timer(deadline)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._fault is not None and not self._pieces:
            raise self._fault

    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._waiter is None or self._deadline is None:
            return
        if self._loop.time() < self._deadline:
            self._set_timer(self._deadline)
        else:
            self._fail(TransportFaultKind.TIMEOUT, "no data in time")

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, kind: TransportFaultKind, detail: str) -> None:
        if self._fault is None and not self.is_complete:
            has_response = self.has_head or (self.has_bytes and kind is TransportFaultKind.RESET)
            self._fault = TransportFault(kind, detail, has_response=has_response)
        self._wake()

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Give the loop room for a packet."""
        return self._read_buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take a packet."""
        if not self._is_busy or self.is_complete:
            self.close()  # bytes that nobody asked for: whatever they are, the next answer can't be told from them
            return
        self.has_bytes = True
        if not self.has_head:
            self._num_head_bytes += nbytes
        try:
            self._parser.feed_data(self._read_buffer[:nbytes])
        except httptools.HttpParserError:
            self._fail(TransportFaultKind.PROTOCOL, "not a valid HTTP exchange")
            self.close()
            return
        if not self.has_head and self._num_head_bytes > MAX_HEAD_BYTES:
            self._fail(TransportFaultKind.PROTOCOL, "the response head is too large")
            self.close()
        elif self._num_buffered >= BUFFERED_BYTES and not self._is_paused and not self.is_complete:
            self._is_paused = True
            cast(asyncio.Transport, self._transport).pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self.is_closed = True
        if exc is None and self._ends_with_connection:
            self.on_message_complete()
        self._fail(TransportFaultKind.RESET, "connection closed by the peer")
        self.close()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A message begins; a second answer to one request spoils the connection, not the first one."""
        if self.is_complete:
            raise ValueError("bytes after the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take one header; those of interim answers (1xx) and trailers are not the answer's."""
        if not self.has_head:
            self.raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete; what follows is the body, if there is one."""
        status = self._parser.get_status_code()
        if status < 200:
            self.raw_headers.clear()
            return
        self.status, self.has_head = status, True
        self._is_kept = self._parser.should_keep_alive()
        names = {name.lower() for name, _ in self.raw_headers}
        is_framed = b"content-length" in names or b"transfer-encoding" in names or status in _BODILESS
        self._ends_with_connection = not is_framed
        self._wake()

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        self._pieces.append(data)
        self._num_buffered += len(data)
        self._wake()

    def on_message_complete(self) -> None:
        """The body is complete, unless this was an interim answer."""
        if self.has_head:
            self.is_complete = True
            self._wake()


async def connect(
    host: str, port: int, *, is_tls: bool, read_buffer: memoryview, within: Callable[[], asyncio.Timeout]
) -> HttpConnection:
    """Open a connection.

    Args:
        within: Makes the limit of connecting, TLS included.

    Raises:
        OSError: It can't be opened.
        TimeoutError: Not in time.
    """
    loop = asyncio.get_running_loop()
    async with within():
        _, connection = await loop.create_connection(
            lambda: HttpConnection(read_buffer), host, port, ssl=True if is_tls else None
        )
    return connection
