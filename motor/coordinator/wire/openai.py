"""OpenAI envelopes: error bodies in and out, tolerant request decoding, JSON as vLLM writes it."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from motor.coordinator.domain.errors import ErrorBody, MotorError

_encode = msgspec.json.Encoder().encode


def encode_json(value: Any) -> bytes:
    """Return compact UTF-8 JSON, as vLLM's responses are.

    Lone surrogates, which a client may send in members that nobody reads (`chat_template_kwargs`), are written as
    they came: escaped.
    """
    try:
        return _encode(value)
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), default=_plain).encode()


def _plain(value: Any) -> Any:
    return msgspec.structs.asdict(value) if isinstance(value, msgspec.Struct) else json.loads(bytes(value))


def error_bytes(body: ErrorBody) -> bytes:
    """Return the body of an OpenAI error answer."""
    error = {"message": body.message, "type": body.type, "param": body.param, "code": body.code}
    return encode_json({"error": error})


def error_payload(error: MotorError) -> bytes:
    """Return the error body for the client: the peer's own when it is to be shown as it is."""
    return error.raw_body if error.raw_body is not None else error_bytes(error.body)


def error_event_payload(error: MotorError) -> bytes:
    """Return the same for an event inside a stream, where vLLM writes JSON with spaces."""
    if error.raw_body is not None:
        return error.raw_body
    body = error.body
    fields = {"message": body.message, "type": body.type, "param": body.param, "code": body.code}
    return json.dumps({"error": fields}).encode()


def parse_error(payload: bytes) -> ErrorBody | None:
    """Read any of vLLM's three error shapes; `None` if it is none of them.

    `{"error": {...}}` (OpenAI), `{"error": "text"}` (authorisation, scaling) and `{"detail": "text"}` (routing).
    """
    try:
        value = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(value, dict):
        return None
    return error_of(value)


def error_of(value: Mapping[str, Any]) -> ErrorBody | None:
    """Read an error from a decoded object, see `parse_error`."""
    error = value.get("error")
    if isinstance(error, dict):
        param, code = error.get("param"), error.get("code")
        return ErrorBody(
            str(error.get("message", "")),
            str(error.get("type") or "Error"),
            param if isinstance(param, str) else None,
            code if isinstance(code, int | str) else None,
        )
    if isinstance(error, str):
        return ErrorBody(error, "Error")
    detail = value.get("detail")
    if detail is not None:
        return ErrorBody(detail if isinstance(detail, str) else json.dumps(detail), "Error")
    return None


def decode_request(body: bytes) -> Mapping[str, Any] | None:
    """Return the JSON object of a request body, or `None` if it isn't one.

    msgspec is strict and fast; what it refuses but Python's own decoder takes (NaN, 1e999, lone surrogates: native
    vLLM takes them) is decoded by the slower one, so that the answer never depends on which is stricter.
    """
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return None
    except RecursionError:
        return None
    return value if isinstance(value, dict) else None
