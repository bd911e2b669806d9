"""From ASGI to our request values: body limit, ids, headers that go on to peers."""

import asyncio
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable

from starlette.types import Receive, Scope

from motor.coordinator.domain.errors import BodyTooLarge, ClientGone, RequestInvalid
from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.engine.openai_engine_client import NativeRequest
from motor.coordinator.wire.openai import decode_request

_SAFE_ID = re.compile(r"^[A-Za-z0-9._:-]{1,128}$")
TraceHeaders = Callable[[str | None, str | None], dict[str, str]]
"""Makes the `traceparent` and `tracestate` for our peers from the client's."""


async def read_body(scope: Scope, receive: Receive, max_bytes: int, idle_seconds: float = 60.0) -> bytes:
    """Return the whole body.

    Raises:
        BodyTooLarge: It is, or says it is, over the limit.
        RequestInvalid: Nothing of it came for `idle_seconds` (408).
        ClientGone: The client left before its end.
    """
    declared = header(scope, b"content-length")
    if declared is not None and declared.isdigit() and int(declared) > max_bytes:
        raise BodyTooLarge(f"the request body is over {max_bytes} bytes")
    pieces: list[bytes] = []
    num_bytes = 0
    while True:
        try:
            async with asyncio.timeout(idle_seconds):
                message = await receive()
        except TimeoutError:
            late = f"nothing of the request body came for {idle_seconds:g} seconds"
            raise RequestInvalid(late, status=408, error_type="RequestTimeoutError") from None
        if message["type"] == "http.disconnect":
            raise ClientGone("the client left before the end of its request")
        piece = message.get("body", b"")
        num_bytes += len(piece)
        if num_bytes > max_bytes:
            raise BodyTooLarge(f"the request body is over {max_bytes} bytes")
        pieces.append(piece)
        if not message.get("more_body"):
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def header(scope: Scope, name: bytes) -> str | None:
    """Return the first header of a lower-case name."""
    headers: Iterable[tuple[bytes, bytes]] = scope["headers"]
    return next((value.decode("latin-1") for key, value in headers if key == name), None)


def parse_client_request(
    scope: Scope, api: Api, body: bytes, trace_headers: TraceHeaders, tenant_header: str = ""
) -> ClientRequest:
    """Return the request; a body that isn't a JSON object gives no fields, Render says what is wrong with it."""
    fields = decode_request(body) or {}
    request_id = _request_id(header(scope, b"x-request-id") or fields.get("request_id"))
    forward = trace_headers(header(scope, b"traceparent"), header(scope, b"tracestate"))
    session = header(scope, b"x-session-id")
    if session is not None:
        forward["X-Session-ID"] = session
    return ClientRequest(
        request_id=request_id,
        peer_id=_peer_id(request_id),
        api=api,
        body=body,
        fields=fields,
        content_type=header(scope, b"content-type"),
        forward_headers=forward,
        tenant=(header(scope, tenant_header.encode()) or "") if tenant_header else "",
    )


def native_request(scope: Scope, body: bytes) -> NativeRequest:
    """Return the exchange as it came, for an engine that serves it by itself."""
    target = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
    if scope["query_string"]:
        target += "?" + scope["query_string"].decode("latin-1")
    return NativeRequest(scope["method"], target, tuple(scope["headers"]), body)


def _request_id(given: object) -> str:
    return given if isinstance(given, str) and given else secrets.token_hex(8)


def _peer_id(request_id: str) -> str:
    """Ids with anything unusual are replaced by their digest: they go into header values and logs."""
    if _SAFE_ID.match(request_id):
        return request_id
    return hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).hexdigest()[:32]
