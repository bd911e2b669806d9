"""The HTTP client: one pool of keep-alive connections to all peers; the only user of aiohttp.

vLLM closes a connection that was idle for 5 s, perhaps at the very moment we reuse it. Ours are dropped after
`idle_seconds` (less than that), and a request that still meets a closed one is sent again on a fresh connection,
counted, and only if the peer closed at once and without a byte of answer: it can't have worked on it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import aiohttp
from yarl import URL

from motor.coordinator.transport.faults import TransportFault, TransportFaultKind

STALE_WINDOW_SECONDS = 1.0
"""A peer that closes a reused connection later than this after our request may have been working on it."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A complete answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class HttpStream:
    """An answer whose body is read as it arrives; reading drives back-pressure down to the peer's socket."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.content_type = response.headers.get("Content-Type", "")

    @property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """All response headers in order, duplicates included."""
        return list(self._response.raw_headers)

    async def read_all(self) -> bytes:
        """Return the whole body.

        Raises:
            TransportFault: The connection broke, or the deadline passed.
        """
        try:
            return await self._response.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise _fault_of(error, has_response=True) from error

    async def read_some(self, idle_seconds: float | None = None) -> bytes:
        """Return the bytes that have arrived, at least one; `b""` at the end of the body.

        Raises:
            TransportFault: The connection broke, or nothing came within `idle_seconds`.
        """
        try:
            async with asyncio.timeout(idle_seconds):
                return await self._response.content.readany()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise _fault_of(error, has_response=True) from error


class HttpPool:
    """Pooled HTTP client; create inside the running loop, `close()` at the end.

    Args:
        connect_seconds: Limit of one TCP (and TLS) connect.
        idle_seconds: How long an unused connection is kept.
        on_stale_retry: Called with the peer's origin when a request met a just-closed connection.
    """

    def __init__(
        self,
        *,
        connect_seconds: float = 5.0,
        idle_seconds: float = 3.0,
        on_stale_retry: Callable[[str], None] = lambda origin: None,
    ) -> None:
        self._connect_seconds = connect_seconds
        self._on_stale_retry = on_stale_retry
        self._session = self._new_session(
            aiohttp.TCPConnector(limit=0, keepalive_timeout=idle_seconds, ttl_dns_cache=30)
        )
        self._fresh_session = self._new_session(aiohttp.TCPConnector(limit=0, force_close=True, ttl_dns_cache=30))
        self._num_open = 0

    def _new_session(self, connector: aiohttp.TCPConnector) -> aiohttp.ClientSession:
        tracing = aiohttp.TraceConfig()
        tracing.on_connection_reuseconn.append(_note_reuse)
        return aiohttp.ClientSession(
            connector=connector,
            trace_configs=[tracing],
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_seconds),
            auto_decompress=False,
            skip_auto_headers=("Accept-Encoding", "User-Agent", "Accept", "Content-Type"),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=64 * 1024,
            max_line_size=64 * 1024,
            max_field_size=64 * 1024,
        )

    @property
    def num_open(self) -> int:
        """Requests whose answer has not ended; zero when nothing leaks."""
        return self._num_open

    async def close(self) -> None:
        """Close every connection."""
        await self._session.close()
        await self._fresh_session.close()

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
        try:
            async with (
                asyncio.timeout(timeout_seconds),
                self.stream(method, url, body=body, headers=headers) as stream,
            ):
                return HttpResponse(stream.status, stream._response.headers, await stream.read_all())
        except TimeoutError as error:
            raise TransportFault(TransportFaultKind.TIMEOUT, f"no answer within {timeout_seconds} s") from error

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

        Raises:
            TransportFault: No response head, or none within `head_seconds`.
        """
        self._num_open += 1
        response: aiohttp.ClientResponse | None = None
        try:
            response = await self._open(method, url, body, headers or {}, head_seconds)
            yield HttpStream(response)
        finally:
            self._num_open -= 1
            if response is not None:
                # Keeps the connection if the body was read to its end, closes it otherwise.
                if response.content.at_eof():
                    response.release()
                else:
                    response.close()

    async def _open(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], head_seconds: float | None
    ) -> aiohttp.ClientResponse:
        loop = asyncio.get_running_loop()
        for session in (self._session, self._fresh_session):
            use = SimpleNamespace(is_reused=False)
            started = loop.time()
            try:
                async with asyncio.timeout(head_seconds):
                    return await session.request(
                        method,
                        URL(url, encoded=True),  # the native chain forwards paths as the client wrote them
                        data=body,
                        headers=headers,
                        allow_redirects=False,
                        trace_request_ctx=use,
                    )
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                fault = _fault_of(error, has_response=_has_begun_to_answer(error))
                is_stale = (
                    use.is_reused
                    and not fault.has_response
                    and session is self._session
                    and fault.kind is TransportFaultKind.RESET
                    and loop.time() - started < STALE_WINDOW_SECONDS
                )
                if not is_stale:
                    raise fault from error
                self._on_stale_retry(url)
        raise AssertionError("unreachable: the second try returns or raises")


async def _note_reuse(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
    context.trace_request_ctx.is_reused = True


def _has_begun_to_answer(error: Exception) -> bool:
    """Whether a part of the response's head had come: the library then puts that in place of its message."""
    return isinstance(error, aiohttp.ServerDisconnectedError) and not isinstance(error.message, str)


def _fault_of(error: Exception, *, has_response: bool) -> TransportFault:
    """Map the library's exceptions; messages name no URL, they may reach a client."""
    if isinstance(error, aiohttp.ConnectionTimeoutError | aiohttp.ClientConnectorError):
        return TransportFault(TransportFaultKind.CONNECT, "connection failed", has_response=False)
    if isinstance(error, TimeoutError):
        return TransportFault(TransportFaultKind.TIMEOUT, "no data in time", has_response=has_response)
    if isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError | ConnectionError):
        return TransportFault(TransportFaultKind.RESET, "connection closed by the peer", has_response=has_response)
    return TransportFault(TransportFaultKind.PROTOCOL, "not a valid HTTP exchange", has_response=has_response)
