"""A peer whose keep-alive connections break at the worst moment; behind it stands a simulator that does the work."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

Meeting = Callable[[], Awaitable[None]]


class ImpatientPeer:
    """Answers one request a connection; the next one on it is read and met with a close.

    Mutable: `num_closed_at_reuse` and whatever a test changes.

    Attributes:
        closes: Paths under which connections are closed at reuse; others are kept.
        before_close: Awaited between reading the second request and closing.
    """

    def __init__(self, upstream_url: str, closes: str) -> None:
        self.closes = closes
        self.before_close: Meeting | None = None
        self.num_closed_at_reuse = 0
        self._upstream = urlsplit(upstream_url)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        is_used = False
        try:
            while request := await _read_request(reader):
                if is_used and self.closes in request.split(b"\r\n", 1)[0].decode():
                    self.num_closed_at_reuse += 1
                    if self.before_close is not None:
                        await self.before_close()
                    return
                writer.write(await self._answer(request))
                await writer.drain()
                is_used = True
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the Coordinator closed it
        finally:
            writer.close()

    async def _answer(self, request: bytes) -> bytes:
        """Ask the simulator, and return its whole answer as one that keeps the connection."""
        reader, writer = await asyncio.open_connection(self._upstream.hostname, self._upstream.port)
        try:
            head, body = request.split(b"\r\n\r\n", 1)
            writer.write(head + b"\r\nConnection: close\r\n\r\n" + body)
            answer = await reader.read()
        finally:
            writer.close()
        return answer.replace(b"Connection: close\r\n", b"", 1)


@asynccontextmanager
async def impatient_peer(upstream_url: str, closes: str) -> AsyncIterator[tuple[str, ImpatientPeer]]:
    """Run such a peer; gives its URL and the peer."""
    peer = ImpatientPeer(upstream_url, closes)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}", peer
        server.close()


async def _read_request(reader: asyncio.StreamReader) -> bytes:
    """Return the next request; `b""` if the connection ends instead."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    return head + (await reader.readexactly(int(lengths[0])) if lengths else b"")
