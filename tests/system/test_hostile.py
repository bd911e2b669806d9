"""Requests that mean harm: each ends in bounded time with no 5xx of ours, and the next request is served as ever."""

import asyncio
import gzip
import json
import resource
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.deployment import CHAT, COMPLETIONS, QUIET, Deployment, deployment, user
from tests.raw_client import raw_client

HELLO, TEXT = user("Say hello.", **QUIET), "Hello there! I am a tiny test model."
PAYLOAD = json.dumps(HELLO).encode()
BOUND_SECONDS = 30.0
MEGABYTE = 1 << 20


def beside(value: bytes, name: bytes = b"x") -> bytes:
    """Return a good request with one more member."""
    return PAYLOAD[:-1] + b', "' + name + b'": ' + value + b"}"


BODIES = {
    "nested lists": beside(b"[" * 100_000 + b"]" * 100_000),
    "nested objects": beside(b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "unclosed lists": beside(b"[" * 1_000_000),
    "deep messages": beside(b"[" * 500 + b"]" * 500, b"messages"),
    "10 MB string": beside(b'"' + b"a" * 10 * MEGABYTE + b'"'),
    "10 MB of escapes": beside(b'"' + b"\\u00e9" * (10 * MEGABYTE // 6) + b'"'),
    "10 MB key": beside(b"1", b"k" * 10 * MEGABYTE),
    "2 MB message": json.dumps(user("word " * (2 * MEGABYTE // 5))).encode(),
    "100,000 members": beside(b"{" + b",".join(b'"k%d":0' % n for n in range(100_000)) + b"}"),
    "NaN": beside(b"NaN"),
    "NaN temperature": beside(b"NaN", b"temperature"),
    "infinite temperature": beside(b"1e999", b"temperature"),
    "minus infinity": beside(b"-Infinity"),
    "digits": beside(b"9" * 4000),
    "more digits than Python reads": beside(b"9" * 100_000),
    "huge max_tokens": beside(b"1" + b"0" * 30, b"max_tokens"),
    "huge n": beside(b"1" + b"0" * 30, b"n"),
    "huge seed": beside(b"1" + b"0" * 30, b"seed"),
    "doubled keys": beside(b'"nobody"', b"model"),
    "doubled messages": beside(b"[]", b"messages"),
    "lone surrogate": beside(b'"\\ud800"', b"user"),
    "lone surrogate in the prompt": json.dumps(user("\ud800")).encode(),
    "NUL": beside(b'"\\u0000"'),
    "invalid UTF-8": beside(b'"\xff\xfe"'),
    "UTF-16": PAYLOAD.decode().encode("utf-16"),
    "own template": beside(b'"{% for i in range(10**9) %}x{% endfor %}"', b"chat_template"),
    "request id of another": beside(b'"../../etc/passwd\\r\\nX-Evil: 1"', b"request_id"),
}


@asynccontextmanager
async def unharmed(**settings: Any) -> AsyncIterator[Deployment]:
    """Run a deployment that must be as good afterwards as before."""
    async with deployment(**settings) as d:
        started = time.monotonic()
        yield d
        assert time.monotonic() - started < BOUND_SECONDS
        await d.check_nothing_left()
        assert (await d.post(CHAT, HELLO)).text() == TEXT
        await d.check_nothing_left()


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in BODIES.items()])
async def test_bodies(body: bytes) -> None:
    async with unharmed() as d:
        answer = await d.post(CHAT, body)
        assert answer.status in (200, 400, 404), answer.body[:300]
        if answer.status != 200:
            assert answer.json["error"]["code"] == answer.status


@pytest.mark.parametrize("body", [pytest.param(BODIES[name], id=name) for name in ("nested lists", "2 MB message")])
async def test_bodies_while_the_sidecar_is_down(body: bytes) -> None:
    """Then the local tokenizer must not be the one to suffer."""
    async with unharmed() as d:
        assert d.render is not None
        await d.render.crash()
        answer = await d.post(CHAT, body)
        assert answer.status in (200, 400), answer.body[:300]
        await d.render.restart()


async def test_a_gzip_bomb_is_never_inflated() -> None:
    bomb = gzip.compress(b" " * 200 * MEGABYTE)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with unharmed() as d:
        answer = await d.post(CHAT, bomb, {"Content-Encoding": "gzip"})
        assert (answer.status, answer.json["error"]["code"]) == (400, 400)
        assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 100 * MEGABYTE


async def test_a_body_that_stops_coming_is_a_408() -> None:
    async with unharmed(api={"body_idle_timeout_seconds": 0.3}) as d:
        async with raw_client(d.url) as client:
            client.head("POST", CHAT, {"Content-Type": "application/json", "Content-Length": str(len(PAYLOAD))})
            client.writer.write(PAYLOAD[:10])
            answer = await client.answer()
            assert (answer.status, answer.json["error"]["type"]) == (408, "RequestTimeoutError")
            assert answer.all_of("connection") == ["close"]
            assert await client.reader.read() == b""
        assert d.render is not None
        assert d.render.stats.num_renders == 0


async def test_many_trickling_bodies_hold_up_nobody() -> None:
    async with unharmed() as d:
        tricklers = [raw_client(d.url) for _ in range(50)]
        clients = [await trickler.__aenter__() for trickler in tricklers]
        try:
            for client in clients:
                client.head("POST", CHAT, {"Content-Type": "application/json", "Transfer-Encoding": "chunked"})
            for byte in PAYLOAD[:20]:
                for client in clients:
                    client.chunk(bytes([byte]))
                await asyncio.sleep(0)
            assert (await d.post(CHAT, HELLO)).text() == TEXT
        finally:
            for trickler in tricklers:
                await trickler.__aexit__(None, None, None)


def asked_of_peers(d: Deployment) -> tuple[int, int, int]:
    """Return the requests that peers have had; facts about them are asked before the first of ours."""
    num_natives = sum(engine.stats.requests["completions"] for engine in d.engines)
    return num_natives, d.num_generates, d.render.stats.num_renders if d.render is not None else 0


@pytest.mark.parametrize("has_render", [True, False], ids=["token chain", "native chain"])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n": 5}, "n must be at most 4, got 5."),
        ({"n": "5"}, "n must be at most 4, got 5."),
        ({"n": 5.0}, "n must be at most 4, got 5."),
        ({"n": 16384}, "n must be at most 4, got 16384."),
        ({"prompt": ["a"] * 4}, "prompt list length 4 exceeds the maximum allowed count of 3."),
        ({"prompt": [[1]] * 4}, "prompt list length 4 exceeds the maximum allowed count of 3."),
    ],
    ids=str,
)
async def test_a_request_for_too_much_reaches_no_peer(fields: dict[str, Any], message: str, has_render: bool) -> None:
    limits = {"max_n": 4, "max_prompts": 3}
    async with unharmed(limits=limits, has_render=has_render) as d:
        body = {"model": "tiny", "prompt": "a", "max_tokens": 1, "temperature": 1, **fields}
        before = asked_of_peers(d)
        answer = await d.post(COMPLETIONS, body)
        assert (answer.status, answer.json["error"]["type"]) == (400, "BadRequestError")
        assert answer.json["error"]["message"] == message
        assert asked_of_peers(d) == before


@pytest.mark.parametrize(
    "fields", [{"n": 4}, {"n": True}, {"prompt": ["a"] * 3}, {"prompt": [5] * 100}, {"prompt": "aaaaa"}], ids=str
)
async def test_the_limits_themselves_are_allowed(fields: dict[str, Any]) -> None:
    async with unharmed(limits={"max_n": 4, "max_prompts": 3}) as d:
        body = {"model": "tiny", "prompt": "a", "max_tokens": 1, "temperature": 1, **fields}
        assert (await d.post(COMPLETIONS, body)).status == 200
