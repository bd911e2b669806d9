"""A client on a bare socket, for what no HTTP library would send, or not read."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

_SEGMENT_BYTES = 1000


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """An answer as it came; `headers` in lower case, with duplicates."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def all_of(self, name: str) -> list[str]:
        """Return every value of a header."""
        return [value for key, value in self.headers if key == name]


class RawClient:
    """One connection; what is written and when is the test's choice."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self.reader = reader
        self.writer = writer
        self._host = host

    def head(self, method: str, path: str, headers: Mapping[str, str]) -> None:
        """Send a request's head."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}", *(f"{k}: {v}" for k, v in headers.items())]
        self.writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))

    def post(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Send a whole request; `Content-Type` is JSON unless it is given."""
        sized = {"Content-Length": str(len(body)), "Content-Type": "application/json", **(headers or {})}
        self.head("POST", path, sized)
        self.writer.write(body)

    def chunk(self, data: bytes) -> None:
        """Send a piece of a chunked body; an empty one ends it."""
        self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    async def answer(self) -> RawAnswer:
        """Read a whole answer."""
        status, headers = await self.answer_head()
        names = dict(headers)
        if "content-length" in names:
            return RawAnswer(status, headers, await self.reader.readexactly(int(names["content-length"])))
        if names.get("transfer-encoding") != "chunked":
            return RawAnswer(status, headers, await self.reader.read())
        pieces = []
        while size := int(await self.reader.readline(), 16):
            pieces.append((await self.reader.readexactly(size + 2))[:-2])
        await self.reader.readline()
        return RawAnswer(status, headers, b"".join(pieces))

    async def answer_head(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        """Read status and headers."""
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        pairs = (line.split(": ", 1) for line in lines)
        return int(first.split(" ")[1]), tuple((name.lower(), value) for name, value in pairs)


@asynccontextmanager
async def raw_client(url: str, receive_buffer_bytes: int | None = None) -> AsyncIterator[RawClient]:
    """Connect; leaving the block resets the connection.

    Args:
        url: The server.
        receive_buffer_bytes: How much the kernel may take that the test hasn't read.
    """
    parts = urlsplit(url)
    connection = socket.socket()
    if receive_buffer_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        # The server's kernel buffers a multiple of the segment size, which loopback makes large.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, _SEGMENT_BYTES)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, (parts.hostname, parts.port))
    limit = receive_buffer_bytes or 2**20
    reader, writer = await asyncio.open_connection(sock=connection, limit=limit)
    try:
        yield RawClient(reader, writer, f"{parts.hostname}:{parts.port}")
    finally:
        writer.transport.abort()
