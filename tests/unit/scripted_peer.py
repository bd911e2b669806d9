"""A TCP server that answers HTTP requests as a test's script says, byte for byte."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

Script = Callable[[asyncio.StreamWriter, int], Awaitable[None]]
"""Answers one request; told its number on the connection, from 0. Closing the writer ends the connection."""


class ScriptedPeer:
    """What the peer has seen; mutable: every count."""

    def __init__(self, script: Script) -> None:
        self.url = ""
        self.num_connections = 0
        self.num_requests = 0
        self.num_open_connections = 0
        self.stop_listening: Callable[[], None] = lambda: None
        self._script = script

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.num_connections += 1
        self.num_open_connections += 1
        number = 0
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if lengths:
                    await reader.readexactly(int(lengths[0].split(b":")[1]))
                self.num_requests += 1
                await self._script(writer, number)
                number += 1
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client has closed it
        finally:
            self.num_open_connections -= 1
            writer.close()


@asynccontextmanager
async def scripted_peer(script: Script) -> AsyncIterator[ScriptedPeer]:
    """Run a peer."""
    peer = ScriptedPeer(script)
    server = await asyncio.start_server(peer.serve, "127.0.0.1", 0)
    async with server:
        peer.stop_listening = server.close
        peer.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield peer
        server.close()


def answer(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    """Return a whole answer."""
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode() + body


def always(*pieces: bytes) -> Script:
    """Answer every request with the same bytes, piece by piece."""

    async def script(writer: asyncio.StreamWriter, number: int) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return script
