"""What of a client's headers reaches peers, and what of an engine's reaches clients."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.deployment import CHAT, QUIET, Deployment, deployment, user

HELLO = user("Say hello.", **QUIET)
TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CLIENT_HEADERS = {
    "Authorization": "Bearer secret",
    "traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01",
    "tracestate": "vendor=value",
    "X-Request-Id": "from-client",
    "X-data-parallel-rank": "3",
}
STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
Heads = list[tuple[str, dict[str, str]]]


class RecordingRelay:
    """Passes bytes between the Coordinator and a simulator; mutable: `heads`, the requests' heads."""

    def __init__(self, port: int) -> None:
        self.heads: Heads = []
        self._port = port

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection, request by request."""
        upstream_reader, upstream_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            async with asyncio.TaskGroup() as tasks:
                back = tasks.create_task(_copy(upstream_reader, writer))
                while packet := await self._request(reader):
                    upstream_writer.write(packet)
                back.cancel()
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            upstream_writer.close()
            writer.close()

    async def _request(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        self.heads.append((first.split(" ")[1], headers))
        return head + await reader.readexactly(int(headers.get("content-length", 0)))

    def headers_of(self, path: str) -> list[dict[str, str]]:
        """Return the headers of every request to a path."""
        return [headers for target, headers in self.heads if target == path]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while packet := await reader.read(2**16):
        writer.write(packet)
        await writer.drain()


@asynccontextmanager
async def recording(port: int) -> AsyncIterator[tuple[int, RecordingRelay]]:
    """Run a relay; gives its port."""
    relay = RecordingRelay(port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1], relay
        server.close()


@asynccontextmanager
async def recorded(**settings: Any) -> AsyncIterator[tuple[Deployment, RecordingRelay, RecordingRelay]]:
    """Run a deployment that reaches the peers of another one through relays: sidecar, engine."""
    async with deployment() as peers:
        assert peers.render is not None
        async with recording(peers.render.port) as (port, sidecar), recording(peers.engines[0].port) as (other, engine):
            settings.setdefault("render_config", {"enable": True})
            settings["render_config"]["endpoint"] = {"host": "127.0.0.1", "port": port}
            instances = [{"id": "e", "role": "union", "url": f"http://127.0.0.1:{other}"}]
            async with deployment(num_engines=0, has_render=False, instances=instances, **settings) as d:
                yield d, sidecar, engine
                await d.check_nothing_left()
        await peers.check_nothing_left()


def check_trace(headers: dict[str, str]) -> str:
    """The trace goes on with a span of its own; return that span's id."""
    version, trace_id, span_id, flags = headers["traceparent"].split("-")
    assert (version, trace_id, flags, headers["tracestate"]) == ("00", TRACE_ID, "01", "vendor=value")
    assert span_id != PARENT_ID
    return span_id


@STREAMS
async def test_the_token_chains_headers(stream: bool) -> None:
    async with recorded() as (d, sidecar, engine):
        await d.check_nothing_left()
        before = len(sidecar.heads), len(engine.heads)  # what the Coordinator asked for itself
        answer = await d.post(CHAT, {**HELLO, "stream": stream}, CLIENT_HEADERS)
        assert answer.headers["x-motor-chain"] == "token"
        seen = sidecar.heads[before[0] :] + engine.heads[before[1] :]
        assert {path for path, _ in seen} == {CHAT + "/render", CHAT + "/derender", "/inference/v1/generate"}
        for _, headers in seen:
            assert "authorization" not in headers
            assert "x-data-parallel-rank" not in headers
            assert "secret" not in str(headers)
            check_trace(headers)
        [generate] = [headers for path, headers in engine.heads[before[1] :] if path == "/inference/v1/generate"]
        assert "from-client" in generate["x-request-id"]


async def test_without_a_trace_none_is_begun() -> None:
    async with recorded() as (d, sidecar, engine):
        await d.post(CHAT, HELLO, {"traceparent": "00-not-a-trace-01", "tracestate": "vendor=value"})
        assert not [h for _, h in sidecar.heads + engine.heads if "traceparent" in h or "tracestate" in h]


async def test_the_native_chains_headers() -> None:
    async with recorded(render_config={"enable": False}) as (d, _, engine):
        await d.post(CHAT, HELLO, {**CLIENT_HEADERS, "X-Custom": "kept", "Connection": "close"})
        [headers] = engine.headers_of(CHAT)
        assert headers["x-custom"] == "kept"
        assert headers["x-request-id"] == "from-client"
        assert not {"authorization", "x-data-parallel-rank"} & headers.keys()
        check_trace(headers)


async def test_duplicate_response_headers_survive_the_native_chain() -> None:
    body = b'{"ok": true}'

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        lines = ["HTTP/1.1 201 Created", "Set-Cookie: a=1", "X-Twice: one", "Set-Cookie: b=2", "X-Twice: two"]
        hop_by_hop = ["Connection: close", "Keep-Alive: timeout=5", "Server: engine"]
        head = "\r\n".join([*lines, *hop_by_hop, f"Content-Length: {len(body)}", "", ""])
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        instances = [{"id": "e", "role": "union", "url": url}]
        async with deployment(num_engines=0, has_render=False, instances=instances) as d:
            answer = await d.post(CHAT, HELLO)
            assert (answer.status, answer.body) == (201, body)
            assert answer.headers.getall("set-cookie") == ["a=1", "b=2"]
            assert answer.headers.getall("x-twice") == ["one", "two"]
            assert not {"server", "keep-alive", "connection"} & {name.lower() for name in answer.headers}
            await d.check_nothing_left()
        server.close()
