"""The HTTP client: one pool of keep-alive connections to all peers.

vLLM closes a connection that was idle for 5 s, perhaps at the very moment we reuse it. Ours are dropped after
`idle_seconds` (less than that), and a request that still meets a closed one is sent again on a fresh connection,
counted, and only if the peer closed at once and without a byte of answer: it can't have worked on it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

from motor.coordinator.transport.faults import TransportFault, TransportFaultKind
from motor.coordinator.transport.http_connection import HttpConnection, connect

STALE_WINDOW_SECONDS = 1.0
"""A peer that closes a reused connection later than this after our request may have been working on it."""

_READ_BYTES = 64 * 1024
_JOINED_BODY_BYTES = 64 * 1024
"""A body up to this size is sent in one piece with its head."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a URL leads: scheme, host and port, and the `Host` header that names them."""

    host: str
    port: int
    is_tls: bool
    header: str


class HttpStream:
    """An answer whose body is read as it arrives; reading drives back-pressure down to the peer's socket."""

    def __init__(self, connection: HttpConnection, deadline: float | None = None) -> None:
        self._connection = connection
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self.status = connection.status

    @property
    def content_type(self) -> str:
        """The header of that name, or an empty text."""
        found = (value for name, value in self._connection.raw_headers if name.lower() == b"content-type")
        return next(found, b"").decode("latin-1")

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """All response headers in order, duplicates included."""
        return list(self._connection.raw_headers)

    async def read_all(self) -> bytes:
        """Return the whole body.

        Raises:
            TransportFault: The connection broke, or the request's deadline passed.
        """
        pieces = []
        while piece := await self._connection.read_some(self._deadline):
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read_some(self, idle_seconds: float | None = None) -> bytes:
        """Return the bytes that have arrived, at least one; `b""` at the end of the body.

        Raises:
            TransportFault: The connection broke, or nothing came within `idle_seconds`.
        """
        deadline = None if idle_seconds is None else self._loop.time() + idle_seconds
        return await self._connection.read_some(deadline)


class HttpPool:
    """Pooled HTTP client; create inside the running loop, `close()` at the end. Mutable: the idle connections.

    Args:
        connect_seconds: Limit of one TCP (and TLS) connect.
        idle_seconds: How long an unused connection is kept.
        on_stale_retry: Called with the peer's URL when a request met a just-closed connection.
    """

    def __init__(
        self,
        *,
        connect_seconds: float = 5.0,
        idle_seconds: float = 3.0,
        on_stale_retry: Callable[[str], None] = lambda origin: None,
    ) -> None:
        self._connect_seconds = connect_seconds
        self._idle_seconds = idle_seconds
        self._on_stale_retry = on_stale_retry
        self._loop = asyncio.get_running_loop()
        self._read_buffer = memoryview(bytearray(_READ_BYTES))
        self._idle: dict[_Origin, list[HttpConnection]] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._num_open = 0

    @property
    def num_open(self) -> int:
        """Requests whose answer has not ended; zero when nothing leaks."""
        return self._num_open

    async def close(self) -> None:
        """Close every idle connection; those in use close with their requests."""
        self._is_closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # lets the loop close the sockets

    async def request(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None,
    ) -> HttpResponse:
        """Send a request and read the whole answer within `timeout_seconds`.

        Raises:
            TransportFault: No complete answer.
        """
        async with self.stream(method, url, body=body, headers=headers, head_seconds=timeout_seconds) as stream:
            payload = await stream.read_all()
            named = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in stream.raw_headers}
            return HttpResponse(stream.status, named, payload)

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        head_seconds: float | None = None,
    ) -> AsyncIterator[HttpStream]:
        """Send a request; leaving the block before the body's end closes the connection, so the peer aborts.

        Args:
            head_seconds: Limit of the time to the response head, and of `HttpStream.read_all` as well.

        Raises:
            TransportFault: No response head, or none within `head_seconds`.
        """
        deadline = None if head_seconds is None else self._loop.time() + head_seconds
        origin, target = _parsed(url)
        message = _message(method, target, origin.header, headers or {}, body)
        self._num_open += 1
        try:
            connection = await self._answered(origin, url, message, deadline)
            try:
                yield HttpStream(connection, deadline)
            finally:
                if connection.finish(self._loop.time()):
                    self._keep(origin, connection)
        finally:
            self._num_open -= 1

    async def _answered(
        self, origin: _Origin, url: str, message: tuple[bytes, ...], deadline: float | None
    ) -> HttpConnection:
        """Return a connection that has the head of an answer to the message."""
        reused = self._take_idle(origin)
        if reused is not None:
            started = self._loop.time()
            try:
                return await _head(reused, message, deadline)
            except TransportFault as fault:
                is_recent = self._loop.time() - started < STALE_WINDOW_SECONDS
                if fault.kind is not TransportFaultKind.RESET or reused.has_bytes or not is_recent:
                    raise
                self._on_stale_retry(url)
        return await _head(await self._connected(origin, deadline), message, deadline)

    async def _connected(self, origin: _Origin, deadline: float | None) -> HttpConnection:
        limit = self._loop.time() + self._connect_seconds
        is_ours = deadline is None or limit <= deadline
        try:
            return await connect(
                origin.host,
                origin.port,
                is_tls=origin.is_tls,
                read_buffer=self._read_buffer,
                within=lambda: asyncio.timeout_at(limit if is_ours else deadline),
            )
        except TimeoutError as error:
            kind = TransportFaultKind.CONNECT if is_ours else TransportFaultKind.TIMEOUT
            raise TransportFault(kind, "no connection in time") from error
        except OSError as error:
            raise TransportFault(TransportFaultKind.CONNECT, "connection failed") from error

    def _take_idle(self, origin: _Origin) -> HttpConnection | None:
        connections = self._idle.get(origin)
        oldest = self._loop.time() - self._idle_seconds
        while connections:
            connection = connections.pop()
            if not connection.is_closed and connection.idle_since > oldest:
                return connection
            connection.close()
        return None

    def _keep(self, origin: _Origin, connection: HttpConnection) -> None:
        if self._is_closed:
            connection.close()
            return
        self._idle.setdefault(origin, []).append(connection)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(self._idle_seconds, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle for too long."""
        oldest = self._loop.time() - self._idle_seconds
        for origin, connections in list(self._idle.items()):
            kept = [one for one in connections if not one.is_closed and one.idle_since > oldest]
            for connection in connections:
                if connection.idle_since <= oldest:
                    connection.close()
            if kept:
                self._idle[origin] = kept
            else:
                del self._idle[origin]
        self._sweeper = self._loop.call_later(self._idle_seconds / 2, self._sweep) if self._idle else None


async def _head(connection: HttpConnection, message: tuple[bytes, ...], deadline: float | None) -> HttpConnection:
    """Send and wait for the answer's head; a connection without one is closed."""
    connection.send(message)
    try:
        await connection.wait_head(deadline)
    except BaseException:
        connection.close()
        raise
    return connection


@lru_cache(maxsize=4096)
def _parsed(url: str) -> tuple[_Origin, str]:
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    origin = _Origin(parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls, parts.netloc)
    path = parts.path or "/"
    return origin, f"{path}?{parts.query}" if parts.query else path


def _message(method: str, target: str, host: str, headers: Mapping[str, str], body: bytes | None) -> tuple[bytes, ...]:
    """Return a request as it goes over the wire.

    Raises:
        TransportFault: A header or the target would break out of its line.
    """
    lines = [f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n", *(f"{k}: {v}\r\n" for k, v in headers.items())]
    if body is not None or method == "POST":
        lines.append(f"Content-Length: {len(body or b'')}\r\n")
    text = "".join(lines)
    if text.count("\n") != len(lines) + 1 or text.count("\r") != len(lines) + 1:
        raise TransportFault(TransportFaultKind.PROTOCOL, "a header has a line break")
    head = (text + "\r\n").encode("latin-1", errors="replace")
    if body is None or len(body) > _JOINED_BODY_BYTES:
        return (head, body) if body else (head,)
    return (head + body,)
