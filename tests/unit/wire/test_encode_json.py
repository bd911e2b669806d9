"""JSON that goes out, for values that came in through Python's tolerant decoder."""

import json

import msgspec
import pytest

from motor.coordinator.domain.generation import GenerateChoice
from motor.coordinator.wire.openai import decode_request, encode_json


@pytest.mark.parametrize("text", [r'{"a":"\ud800"}', r'{"\udfff":1}', '{"a":' + "9" * 400 + "}"])
def test_whatever_a_request_holds_can_be_sent_on(text: str) -> None:
    fields = decode_request(text.encode())
    assert json.loads(encode_json(fields)) == json.loads(text)


def test_structs_and_undecoded_members_beside_such_text_keep_their_shape() -> None:
    choice = GenerateChoice(index=1, token_ids=[5])
    value = {"text": "\ud800", "ids": (1, 2), "choice": choice, "raw": msgspec.Raw(b'{"b":null}')}
    sent = json.loads(encode_json(value))
    assert sent["text"] == "\ud800"
    assert (sent["ids"], sent["raw"]) == ([1, 2], {"b": None})
    assert sent["choice"] == json.loads(encode_json(choice))


def test_ordinary_values_are_compact_utf8() -> None:
    assert encode_json({"a": "é", "b": [1, None]}) == '{"a":"é","b":[1,null]}'.encode()
