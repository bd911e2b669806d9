"""Requests as they should not be, or as few clients send them; what native vLLM answers, before any engine is asked."""

import gzip
import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.deployment import CHAT, COMPLETIONS, QUIET, Deployment, deployment, user
from tests.raw_client import RawAnswer, raw_client

HELLO, TEXT = user("Say hello.", **QUIET), "Hello there! I am a tiny test model."
PAYLOAD = json.dumps(HELLO).encode()
SMALL = {"max_body_bytes": 1000}


async def sent(d: Deployment, body: bytes, headers: Mapping[str, str] | None = None, path: str = CHAT) -> RawAnswer:
    """Send exactly this on a connection of its own."""
    async with raw_client(d.url) as client:
        client.post(path, body, headers)
        return await client.answer()


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"model": "tiny", ', b"not json", b"[1, 2]", b'"text"', b"null", b"\xff\xfe{}", b"\x00"],
)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_body_that_is_no_json_object(path: str, body: bytes) -> None:
    async with deployment() as d:
        answer = await sent(d, body, path=path)
        assert (answer.status, answer.json["error"]["code"]) == (400, 400)
        assert answer.json["error"]["type"] == "Bad Request"
        assert d.num_generates == 0
        await d.check_nothing_left()


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": "nobody"}, 404),
        ({"messages": []}, 400),
        ({"messages": None}, 400),
        ({"messages": "hi"}, 400),
        ({"max_tokens": 0}, 400),
        ({"max_tokens": -1}, 400),
        ({"max_tokens": 10**9}, 400),
        ({"max_tokens": "many"}, 400),
        ({"n": 0}, 400),
        ({"n": 2, "temperature": 0}, 400),
        ({"n": "two"}, 400),
        ({"temperature": -1}, 400),
        ({"stop": 5}, 400),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_fields_that_render_refuses(fields: dict[str, Any], status: int, stream: bool) -> None:
    async with deployment() as d:
        answer = await d.post(CHAT, {**HELLO, **fields, "stream": stream})
        assert (answer.status, answer.json["error"]["code"]) == (status, status)
        assert answer.headers["content-type"] == "application/json"
        assert d.num_generates == 0
        await d.check_nothing_left()


@pytest.mark.parametrize("prompt", [[5, 1024], [[5], [6, 99999]], [2**31]], ids=str)
async def test_token_ids_out_of_the_vocabulary(prompt: list[Any]) -> None:
    """One of them would kill an engine that runs without a tokenizer."""
    async with deployment(engine={"is_tokens_only": True}) as d:
        answer = await d.post(COMPLETIONS, {"model": "tiny", "prompt": prompt, "max_tokens": 4})
        assert answer.status == 400
        assert "is out of vocabulary" in answer.json["error"]["message"]
        assert d.num_generates == 0
        assert d.engines[0].is_listening
        await d.check_nothing_left()


async def test_a_prompt_over_the_context() -> None:
    async with deployment() as d:
        answer = await d.post(CHAT, user("word " * 5000))
        assert answer.status == 400
        assert "maximum context length is 2048 tokens" in answer.json["error"]["message"]
        assert d.num_generates == 0
        await d.check_nothing_left()


async def test_a_declared_body_over_the_limit_is_not_even_read() -> None:
    async with deployment(api=SMALL) as d:
        async with raw_client(d.url) as client:
            client.head("POST", CHAT, {"Content-Type": "application/json", "Content-Length": "1001"})
            answer = await client.answer()  # nothing of the body has been sent
        assert answer.status == 413
        assert answer.json == {
            "error": {
                "message": "the request body is over 1000 bytes",
                "type": "RequestEntityTooLargeError",
                "param": None,
                "code": 413,
            }
        }
        assert (await sent(d, PAYLOAD.ljust(1000))).status == 200  # the limit itself is allowed
        await d.check_nothing_left()


async def test_a_chunked_body_over_the_limit() -> None:
    async with deployment(api=SMALL) as d:
        async with raw_client(d.url) as client:
            client.head("POST", CHAT, {"Content-Type": "application/json", "Transfer-Encoding": "chunked"})
            for _ in range(11):
                client.chunk(b" " * 100)
            answer = await client.answer()  # there may be more to come: the answer doesn't wait for it
        assert (answer.status, answer.json["error"]["code"]) == (413, 413)
        assert d.render is not None
        assert d.render.stats.num_renders == 0
        await d.check_nothing_left()


async def test_a_chunked_upload() -> None:
    async with deployment() as d:
        async with raw_client(d.url) as client:
            client.head("POST", CHAT, {"Content-Type": "application/json", "Transfer-Encoding": "chunked"})
            for start in range(0, len(PAYLOAD), 7):
                client.chunk(PAYLOAD[start : start + 7])
            client.chunk(b"")
            answer = await client.answer()
        assert answer.json["choices"][0]["message"]["content"] == TEXT
        await d.check_nothing_left()


async def test_expect_100_continue() -> None:
    async with deployment() as d:
        async with raw_client(d.url) as client:
            headers = {"Content-Type": "application/json", "Expect": "100-continue"}
            client.head("POST", CHAT, {**headers, "Content-Length": str(len(PAYLOAD))})
            assert (await client.answer_head()) == (100, ())
            client.writer.write(PAYLOAD)
            answer = await client.answer()
        assert answer.json["choices"][0]["message"]["content"] == TEXT
        await d.check_nothing_left()


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
async def test_another_content_type(content_type: str) -> None:
    async with deployment() as d:
        answer = await sent(d, PAYLOAD, {"Content-Type": content_type})
        assert answer.status == 400
        assert "Unsupported Media Type" in answer.json["error"]["message"]
        assert d.num_generates == 0
        await d.check_nothing_left()


async def test_a_compressed_body_is_no_json() -> None:
    """vLLM doesn't decompress requests; neither do we."""
    async with deployment() as d:
        answer = await sent(d, gzip.compress(PAYLOAD), {"Content-Encoding": "gzip"})
        assert (answer.status, answer.json["error"]["code"]) == (400, 400)
        assert d.num_generates == 0
        await d.check_nothing_left()


async def test_a_byte_order_mark_is_judged_by_render_alone() -> None:
    async with deployment() as d:
        answer = await sent(d, b"\xef\xbb\xbf" + PAYLOAD)
        assert d.render is not None
        assert d.render.stats.num_renders == 1
        assert answer.status == 400
        await d.check_nothing_left()


async def test_unknown_paths_and_wrong_methods_have_natives_shape() -> None:
    async with deployment() as d:
        for path in (
            "/",
            "/v1",
            "/v1/chat/completions/render",
            "/sleep",
            "/reset_prefix_cache",
        ):
            answer = await sent(d, PAYLOAD, path=path)
            assert (answer.status, answer.json) == (404, {"detail": "Not Found"}), path
        wrong = await d.get(d.url + CHAT)
        assert (wrong.status, wrong.json, wrong.headers["allow"]) == (405, {"detail": "Method Not Allowed"}, "POST")
        assert (await sent(d, PAYLOAD, path="/v1/models")).status == 405
        await d.check_nothing_left()


async def test_unusual_values_pass_as_they_are() -> None:
    """U+2028, NUL, four-byte emoji in keys, duplicate keys, integers beyond 64 bits: none of them is ours to judge."""
    odd = PAYLOAD[:-1] + b', "\xf0\x9f\x8e\x89": 123456789012345678901234567890, "x": "\\u2028\\u0000", "x": 1}'
    async with deployment() as d:
        answer = await sent(d, odd)
        assert answer.json["choices"][0]["message"]["content"] == TEXT
        await d.check_nothing_left()


@pytest.mark.parametrize("text", [b'"\\ud800"', b"1e999", b"NaN"])
async def test_what_only_pythons_decoder_takes_ends_well(text: bytes) -> None:
    """The sidecar judges it; we neither crash nor lose the request."""
    async with deployment() as d:
        answer = await sent(d, PAYLOAD[:-1] + b', "user": ' + text + b"}")
        assert answer.status in (200, 400)
        await d.check_nothing_left()
