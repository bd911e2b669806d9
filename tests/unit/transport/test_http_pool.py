"""The HTTP client against scripted peers: faults by kind, reuse, stale connections, back-pressure."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from motor.coordinator.transport.faults import TransportFault, TransportFaultKind
from motor.coordinator.transport.http_pool import HttpPool
from tests.deployment import eventually
from tests.unit.scripted_peer import Script, ScriptedPeer, always, answer, scripted_peer

HELLO = answer(b"hello")


class Pool(HttpPool):
    """A pool that notes its stale retries."""

    def __init__(self) -> None:
        self.stale_retries: list[str] = []
        super().__init__(connect_seconds=2, on_stale_retry=self.stale_retries.append)

    async def ask(self, peer: ScriptedPeer, timeout_seconds: float = 5.0) -> bytes:
        """Make a request; return the body."""
        return (await self.request("POST", peer.url + "/x", body=b"ask", timeout_seconds=timeout_seconds)).body


@asynccontextmanager
async def pool_and_peer(script: Script) -> AsyncIterator[tuple[Pool, ScriptedPeer]]:
    async with scripted_peer(script) as peer:
        pool = Pool()
        try:
            yield pool, peer
            assert pool.num_open == 0
        finally:
            await pool.close()


async def fault_of(pool: Pool, peer: ScriptedPeer, timeout_seconds: float = 5.0) -> TransportFault:
    with pytest.raises(TransportFault) as raised:
        await pool.ask(peer, timeout_seconds)
    assert "127.0.0.1" not in str(raised.value)  # messages reach clients
    return raised.value


async def test_a_connection_is_reused_when_the_body_was_read() -> None:
    async with pool_and_peer(always(HELLO)) as (pool, peer):
        assert [await pool.ask(peer) for _ in range(3)] == [b"hello"] * 3
        assert (peer.num_requests, peer.num_connections) == (3, 1)


async def test_leaving_a_stream_early_closes_its_connection() -> None:
    async with pool_and_peer(always(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhello")) as (pool, peer):
        async with pool.stream("GET", peer.url) as stream:
            assert await stream.read_some() == b"hello"
        await eventually(lambda: peer.num_open_connections == 0, "the peer sees the end")


async def test_duplicate_headers_are_kept_in_order() -> None:
    script = always(answer(b"", headers="X-A: 1\r\nX-B: 2\r\nX-A: 3\r\n"))
    async with pool_and_peer(script) as (pool, peer), pool.stream("GET", peer.url) as stream:
        assert stream.raw_headers[:3] == [(b"X-A", b"1"), (b"X-B", b"2"), (b"X-A", b"3")]
        assert await stream.read_some() == b""


@pytest.mark.parametrize(
    ("pieces", "kind", "has_response"),
    [
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel",), TransportFaultKind.RESET, True),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",), TransportFaultKind.RESET, True),
        ((b"SMTP ready\r\n\r\n",), TransportFaultKind.PROTOCOL, False),
        ((), TransportFaultKind.RESET, False),
    ],
    ids=["cut body", "cut chunks", "no HTTP", "nothing"],
)
async def test_faults_of_a_fresh_connection(
    pieces: tuple[bytes, ...], kind: TransportFaultKind, has_response: bool
) -> None:
    async def script(writer: asyncio.StreamWriter, number: int) -> None:
        await always(*pieces)(writer, number)
        writer.close()

    async with pool_and_peer(script) as (pool, peer):
        fault = await fault_of(pool, peer)
        assert (fault.kind, fault.has_response) == (kind, has_response)
        assert (peer.num_requests, pool.stale_retries) == (1, [])


async def test_nobody_listens() -> None:
    async with pool_and_peer(always(HELLO)) as (pool, peer):
        peer.stop_listening()
        assert (await fault_of(pool, peer)).kind is TransportFaultKind.CONNECT


async def test_a_silent_peer_times_out() -> None:
    async with pool_and_peer(always()) as (pool, peer):
        assert (await fault_of(pool, peer, 0.1)).kind is TransportFaultKind.TIMEOUT
        with pytest.raises(TransportFault) as raised:
            async with pool.stream("GET", peer.url, head_seconds=0.1):
                raise AssertionError("there is no head")
        assert (raised.value.kind, raised.value.has_response) == (TransportFaultKind.TIMEOUT, False)


async def test_a_peer_that_falls_silent_times_out() -> None:
    script = always(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhel")
    async with pool_and_peer(script) as (pool, peer), pool.stream("GET", peer.url) as stream:
        assert await stream.read_some(1.0) == b"hel"
        with pytest.raises(TransportFault) as raised:
            await stream.read_some(0.1)
        assert (raised.value.kind, raised.value.has_response) == (TransportFaultKind.TIMEOUT, True)


async def test_a_connection_closed_at_reuse_is_replaced_once() -> None:
    async def script(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 0:
            writer.write(HELLO)
        else:
            writer.close()

    async with pool_and_peer(script) as (pool, peer):
        assert [await pool.ask(peer) for _ in range(2)] == [b"hello"] * 2
        assert (peer.num_requests, len(pool.stale_retries)) == (3, 1)


async def test_a_second_closed_connection_is_a_fault() -> None:
    is_first = True

    async def script(writer: asyncio.StreamWriter, number: int) -> None:
        nonlocal is_first
        if is_first:
            writer.write(HELLO)
        else:
            writer.close()
        is_first = False

    async with pool_and_peer(script) as (pool, peer):
        assert await pool.ask(peer) == b"hello"
        assert (await fault_of(pool, peer)).kind is TransportFaultKind.RESET
        assert (peer.num_requests, len(pool.stale_retries)) == (3, 1)


@pytest.mark.parametrize("begun", [b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Le"])
async def test_a_peer_that_began_to_answer_is_not_asked_again(begun: bytes) -> None:
    """It has worked on the request: repeating that is not the pool's decision."""

    async def script(writer: asyncio.StreamWriter, number: int) -> None:
        if number == 0:
            writer.write(HELLO)
        else:
            writer.write(begun)
            await writer.drain()
            writer.close()

    async with pool_and_peer(script) as (pool, peer):
        assert await pool.ask(peer) == b"hello"
        await fault_of(pool, peer)
        assert (peer.num_requests, pool.stale_retries) == (2, [])


async def test_an_unread_stream_stops_its_peer() -> None:
    num_written = 0
    total = 64 * 1024 * 1024

    async def script(writer: asyncio.StreamWriter, number: int) -> None:
        nonlocal num_written
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {total}\r\n\r\n".encode())
        while num_written < total:
            writer.write(b"x" * 65536)
            await writer.drain()
            num_written += 65536

    async with pool_and_peer(script) as (pool, peer), pool.stream("GET", peer.url) as stream:
        assert await stream.read_some()
        num_quiet, last = 0, -1
        while num_quiet < 1000:  # turns of the loop, in each of which the peer could write
            num_quiet, last = (num_quiet + 1, last) if num_written == last else (0, num_written)
            await asyncio.sleep(0)
        assert num_written < total / 2
        num_read = len(await stream.read_some())
        assert num_read <= 4 * 64 * 1024  # what we hold of it ourselves
