"""Requests as ASGI gives them: the body's limit, ids that are safe everywhere, what goes on to peers."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from motor.coordinator.api.request_parsing import native_request, parse_client_request, read_body
from motor.coordinator.domain.errors import BodyTooLarge, ClientGone
from motor.coordinator.domain.request import Api


def scope_of(*headers: tuple[str, str], path: str = "/v1/completions", query: str = "") -> dict[str, Any]:
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return {
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": pairs,
    }


def pieces(*bodies: bytes, ends: bool = True) -> Callable[[], Awaitable[Any]]:
    """Return a `receive` for a body in pieces, after which the client leaves unless it `ends`."""
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": True} for body in bodies]
    if ends:
        messages[-1]["more_body"] = False
    else:
        messages.append({"type": "http.disconnect"})

    async def receive() -> Any:
        return messages.pop(0)

    return receive


def no_trace(traceparent: str | None, tracestate: str | None) -> dict[str, str]:
    return {}


async def test_a_body_in_pieces() -> None:
    assert await read_body(scope_of(), pieces(b"ab", b"", b"c"), 3) == b"abc"


async def test_a_body_over_the_limit_is_refused_as_soon_as_it_is() -> None:
    receive = pieces(b"ab", b"cd", b"ef")
    with pytest.raises(BodyTooLarge):
        await read_body(scope_of(), receive, 3)
    assert (await receive())["body"] == b"ef"  # the rest was not read


async def test_a_declared_size_over_the_limit_is_refused_unread() -> None:
    receive = pieces(b"ab")
    with pytest.raises(BodyTooLarge):
        await read_body(scope_of(("content-length", "4")), receive, 3)
    assert (await receive())["body"] == b"ab"


async def test_a_client_that_leaves_before_the_end() -> None:
    with pytest.raises(ClientGone):
        await read_body(scope_of(), pieces(b"ab", ends=False), 3)


def parsed(body: bytes, *headers: tuple[str, str]) -> Any:
    return parse_client_request(scope_of(*headers), Api.COMPLETIONS, body, no_trace)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"5", b"\xff"])
def test_what_is_no_object_has_no_fields_and_stays_as_it_is(body: bytes) -> None:
    client = parsed(body)
    assert (client.fields, client.body) == ({}, body)


def test_the_request_id_is_the_headers_then_the_bodys_then_ours() -> None:
    assert parsed(b'{"request_id": "body"}', ("x-request-id", "header")).request_id == "header"
    assert parsed(b'{"request_id": "body"}').request_id == "body"
    assert len({parsed(b"{}").request_id for _ in range(10)}) == 10
    assert parsed(b'{"request_id": 5}').request_id != 5


@pytest.mark.parametrize("given", ["é", "a b", "x" * 200, "a\r\nb: c", "\ud800"])
def test_an_unusual_id_is_shown_to_the_client_and_never_to_a_peer(given: str) -> None:
    client = parsed(b'{"request_id": ' + repr_json(given) + b"}")
    assert client.request_id == given
    assert client.public_id == "cmpl-" + given
    assert client.peer_id.isalnum()
    assert len(client.peer_id) == 32


def repr_json(text: str) -> bytes:
    return json.dumps(text).encode()


def test_session_goes_on() -> None:
    client = parsed(b"{}", ("x-session-id", "s"), ("authorization", "Bearer secret"))
    assert client.forward_headers == {"X-Session-ID": "s"}


def test_a_native_request_keeps_path_and_query_as_they_were_written() -> None:
    scope = scope_of(("a", "1"), ("a", "2"), path="/v1/resp%6fnses", query="x=%20&y")
    native = native_request(scope, b"body")
    assert (native.target, native.headers) == ("/v1/resp%6fnses?x=%20&y", ((b"a", b"1"), (b"a", b"2")))
