"""Error shapes and request decoding."""

import json

import pytest

from motor.coordinator.domain.errors import ErrorBody, RequestInvalid
from motor.coordinator.wire.openai import decode_request, error_payload, parse_error


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (
            b'{"error":{"message":"m","type":"BadRequestError","param":"n","code":400}}',
            ErrorBody("m", "BadRequestError", "n", 400),
        ),
        (b'{"error":"Unauthorized"}', ErrorBody("Unauthorized", "Error")),
        (b'{"detail":"Not Found"}', ErrorBody("Not Found", "Error")),
        (b'{"detail":[{"loc":["body"]}]}', ErrorBody('[{"loc": ["body"]}]', "Error")),
        (b"<html>", None),
        (b"[]", None),
        (b"{}", None),
        (b"\xff", None),
    ],
)
def test_every_error_shape_of_vllm(payload: bytes, expected: ErrorBody | None) -> None:
    assert parse_error(payload) == expected


def test_an_error_is_the_openai_object() -> None:
    payload = error_payload(RequestInvalid("no", param="n"))
    assert json.loads(payload) == {"error": {"message": "no", "type": "BadRequestError", "param": "n", "code": 400}}


def test_a_peers_own_error_is_kept_to_the_byte() -> None:
    assert error_payload(RequestInvalid("no", raw_body=b'{"error": {}}')) == b'{"error": {}}'


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"stream":true}', {"stream": True}),
        (b'{"a":1,"a":2}', {"a": 2}),
        (b'{"user":"\\ud800"}', {"user": "\ud800"}),
        (b'{"temperature":1e999}', {"temperature": float("inf")}),
        (b'{"seed":123456789012345678901234567890}', {"seed": 123456789012345678901234567890}),
        (b"[1]", None),
        (b"{", None),
        (b"", None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
    ],
)
def test_request_decoding_takes_what_native_takes(body: bytes, expected: dict[str, object] | None) -> None:
    assert decode_request(body) == expected
