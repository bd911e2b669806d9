"""Token-only generate against scripted engines: what ends a stream well, and what each failure is called."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from motor.coordinator.domain.errors import (
    EngineBroken,
    EngineFailed,
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    EngineUnreachable,
    MotorError,
    TokenOnlyUnsupported,
)
from motor.coordinator.domain.generation import GenerateChunk
from motor.coordinator.engine.token_engine_client import EngineRequest, EngineTimeouts, TokenEngineClient
from motor.coordinator.transport.http_pool import HttpPool
from tests.deployment import eventually
from tests.unit.scripted_peer import Script, ScriptedPeer, always, answer, scripted_peer

REQUEST = EngineRequest("r-0", b"{}", num_choices=1)
STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def event(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


ONE, LAST = event(token_ids=[1]), event(token_ids=[2], finish_reason="stop")


@asynccontextmanager
async def client_and_peer(script: Script) -> AsyncIterator[tuple[TokenEngineClient, ScriptedPeer]]:
    async with scripted_peer(script) as peer:
        pool = HttpPool()
        try:
            yield TokenEngineClient(pool, EngineTimeouts(0.3, 0.3, 0.3)), peer
            assert pool.num_open == 0
        finally:
            await pool.close()


def streamed(*pieces: bytes) -> Script:
    async def script(writer: asyncio.StreamWriter, number: int) -> None:
        await always(STREAM_HEAD, *pieces)(writer, number)
        writer.close()

    return script


async def chunks_of(client: TokenEngineClient, peer: ScriptedPeer, request: EngineRequest) -> list[GenerateChunk]:
    async with client.stream(peer.url, request) as stream:
        return [chunk async for chunk in stream.chunks()]


async def ids_of(script: Script, num_choices: int = 1) -> list[int]:
    async with client_and_peer(script) as (client, peer):
        chunks = await chunks_of(client, peer, EngineRequest("r-0", b"{}", num_choices))
        return [i for chunk in chunks for choice in chunk.choices for i in choice.token_ids or ()]


async def test_a_stream_cut_anywhere_is_the_same_stream() -> None:
    whole = b": comment\r\n\r\n" + ONE.replace(b"\n\n", b"\r\n\r\n") + ONE + LAST + DONE
    for size in (1, 2, 3, 7, len(whole)):
        assert await ids_of(streamed(*(whole[i : i + size] for i in range(0, len(whole), size)))) == [1, 1, 2]


async def test_the_usage_event_has_no_choice() -> None:
    usage = b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}}\n\n'
    async with client_and_peer(streamed(ONE, LAST, usage, DONE)) as (client, peer):
        last = (await chunks_of(client, peer, REQUEST))[-1]
        assert last.usage is not None
        assert (last.choices, last.usage.total_tokens) == ([], 5)


async def test_a_stream_without_done_is_whole_once_every_choice_has_ended() -> None:
    assert await ids_of(streamed(ONE, LAST)) == [1, 2]


@pytest.mark.parametrize(
    ("pieces", "num_choices"),
    [
        ((), 1),
        ((ONE,), 1),
        ((ONE, DONE), 1),
        ((ONE, LAST, DONE), 2),  # the second choice never ends
        ((ONE, b"data: {not json}\n\n", LAST, DONE), 1),
        ((ONE, b'data: {"choices": "none"}\n\n', LAST), 1),
        ((ONE, b"data: " + b"x" * 100), 1),  # an event that is cut off
        ((event(index=1, token_ids=[1]), LAST), 1),  # nobody asked for it
        ((LAST, ONE), 1),  # tokens after the end
        ((LAST, LAST), 1),
    ],
)
async def test_what_is_no_whole_stream(pieces: tuple[bytes, ...], num_choices: int) -> None:
    with pytest.raises(EngineBroken):
        await ids_of(streamed(*pieces), num_choices)


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        ({"message": "boom", "type": "InternalServerError", "code": 500}, EngineFailed, 502),
        ({"message": "busy", "type": "RateLimit", "code": 429}, EngineFailed, 502),
        ({"message": "too long", "type": "BadRequestError", "code": 400}, EngineRejected, 400),
        ("boom", EngineFailed, 502),
        (5, EngineFailed, 502),
    ],
)
async def test_error_events(error: Any, kind: type[MotorError], status: int) -> None:
    payload = b"data: " + json.dumps({"error": error}).encode() + b"\n\n"
    with pytest.raises(kind) as raised:
        await ids_of(streamed(ONE, payload, DONE))
    assert raised.value.status == status


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (400, {"error": {"message": "bad", "type": "BadRequestError", "code": 400}}, EngineRejected),
        (404, {"error": {"message": "no model", "type": "NotFoundError", "code": 404}}, EngineRejected),
        (422, {"error": {"message": "bad", "type": "x", "code": 422}}, EngineRejected),
        (403, {"error": {"message": "disabled", "type": "PermissionDeniedError", "code": 403}}, TokenOnlyUnsupported),
        (404, {"detail": "Not Found"}, TokenOnlyUnsupported),
        (405, {"detail": "Method Not Allowed"}, TokenOnlyUnsupported),
        (501, {"error": "no"}, TokenOnlyUnsupported),
        (429, {"error": {"message": "busy", "type": "x", "code": 429}}, EngineOverloaded),
        (503, {"error": "scaling"}, EngineOverloaded),
        (500, {"error": {"message": "boom", "type": "x", "code": 500}}, EngineFailed),
        (502, "<html>", EngineFailed),
    ],
)
async def test_statuses(status: int, body: Any, kind: type[MotorError]) -> None:
    script = always(answer(json.dumps(body).encode(), f"{status} X"))
    async with client_and_peer(script) as (client, peer):
        with pytest.raises(kind):
            await client.generate(peer.url, REQUEST)
        with pytest.raises(kind):
            await chunks_of(client, peer, REQUEST)


async def test_a_rejection_keeps_the_engines_own_words() -> None:
    payload = b'{"error":{"message":"bad","type":"BadRequestError","param":"n","code":400}}'
    async with client_and_peer(always(answer(payload, "400 X"))) as (client, peer):
        with pytest.raises(EngineRejected) as raised:
            await client.generate(peer.url, REQUEST)
        assert (raised.value.status, raised.value.raw_body) == (400, payload)


async def test_an_answer_that_is_none() -> None:
    async with client_and_peer(always(answer(b'{"choices": 5}'))) as (client, peer):
        with pytest.raises(EngineBroken):
            await client.generate(peer.url, REQUEST)


async def test_silence_at_each_point() -> None:
    for script in (always(), always(STREAM_HEAD), always(STREAM_HEAD, ONE)):
        async with client_and_peer(script) as (client, peer):
            with pytest.raises(EngineTimeout):
                await chunks_of(client, peer, REQUEST)
    async with client_and_peer(always()) as (client, peer):
        with pytest.raises(EngineTimeout):
            await client.generate(peer.url, REQUEST)


async def test_nobody_there() -> None:
    async with client_and_peer(always()) as (client, peer):
        peer.stop_listening()
        with pytest.raises(EngineUnreachable):
            await client.generate(peer.url, REQUEST)


async def test_leaving_a_stream_early_ends_the_engines_request() -> None:
    async with client_and_peer(always(STREAM_HEAD, ONE)) as (client, peer):
        async with client.stream(peer.url, REQUEST) as stream:
            chunks = stream.chunks()
            assert (await anext(chunks)).choices[0].token_ids == [1]
            await chunks.aclose()
        await eventually(lambda: peer.num_open_connections == 0, "the engine sees the end")
