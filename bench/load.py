"""A lean load generator: keep-alive connections, each sending one request after the other, answers hardly read."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

_STREAM_END = b"0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Load:
    """What is sent.

    Attributes:
        base_url: The server.
        path: Of every request.
        body: Of every request, JSON.
        num_requests: In all.
        num_connections: Requests in flight.
        ending: What a whole answer holds.
    """

    base_url: str
    path: str
    body: bytes
    num_requests: int
    num_connections: int
    ending: bytes = b"data: [DONE]"

    @property
    def message(self) -> bytes:
        """One request as it goes over the wire."""
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: {urlsplit(self.base_url).netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + self.body


@dataclass(slots=True)
class LoadResult:
    """What came back; grows while the load runs.

    Attributes:
        first_byte_seconds: Of each answer's body, from sending the request.
        request_seconds: Of each whole answer.
        elapsed_seconds: Of the whole load.
    """

    first_byte_seconds: list[float] = field(default_factory=list)
    request_seconds: list[float] = field(default_factory=list)
    elapsed_seconds: float = 0.0


class LoadFault(Exception):
    """An answer was not what it had to be."""


async def run_load(load: Load) -> LoadResult:
    """Send everything and return when all answers are there.

    Raises:
        LoadFault: An answer was not a whole 200.
    """
    loop = asyncio.get_running_loop()
    result, remaining = LoadResult(), iter(range(load.num_requests))
    address = urlsplit(load.base_url)
    started = time.perf_counter()
    async with asyncio.TaskGroup() as tasks:

        async def one_connection() -> None:
            connection = _Connection(load, result)
            transport, _ = await loop.create_connection(lambda: connection, address.hostname or "", address.port or 80)
            try:
                for _ in remaining:
                    await connection.exchange()
            finally:
                transport.close()

        for _ in range(load.num_connections):
            tasks.create_task(one_connection())
    result.elapsed_seconds = time.perf_counter() - started
    return result


class _Connection(asyncio.Protocol):
    """One exchange at a time; mutable: everything about the present one."""

    def __init__(self, load: Load, result: LoadResult) -> None:
        self._message = load.message
        self._ending = load.ending
        self._result = result
        self._pieces: list[bytes] = []
        self._sent_at = 0.0
        self._body_at: float | None = None
        self._done: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    async def exchange(self) -> None:
        self._pieces, self._body_at = [], None
        self._done = asyncio.get_running_loop().create_future()
        self._sent_at = time.perf_counter()
        self._transport.write(self._message)
        await self._done
        answer = b"".join(self._pieces)
        if not answer.startswith(b"HTTP/1.1 200") or self._ending not in answer:
            raise LoadFault(f"not a whole 200: {answer[:300]!r}")
        now = time.perf_counter()
        self._result.request_seconds.append(now - self._sent_at)
        self._result.first_byte_seconds.append((self._body_at or now) - self._sent_at)

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        if self._body_at is None and b"data: " in data:
            self._body_at = time.perf_counter()
        if self._done is not None and not self._done.done() and self._is_whole(data):
            self._done.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(LoadFault("the connection was closed in the middle of an answer"))

    def _is_whole(self, data: bytes) -> bool:
        tail = data if len(data) >= len(_STREAM_END) else b"".join(self._pieces[-len(_STREAM_END) :])
        if tail.endswith(_STREAM_END):
            return True
        head, separator, body = b"".join(self._pieces).partition(b"\r\n\r\n") if len(self._pieces) < 8 else (b"",) * 3
        _, has_length, rest = head.lower().partition(b"content-length:")
        return bool(separator and has_length) and len(body) >= int(rest.split(b"\r\n", 1)[0])
