"""Whole answers: each kind of difference is found, each documented one is tolerated."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from motor.parity.comparison import Answer, compare_answers
from motor.parity.difference import Tolerance, id_shape

CHAT: dict[str, Any] = {
    "id": "chatcmpl-be229b4722988a5d",
    "object": "chat.completion",
    "created": 1796097378,
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Hello",
                "tool_calls": [
                    {
                        "id": "chatcmpl-tool-0123456789abcdef",
                        "type": "function",
                        "function": {"name": "f", "arguments": "{}"},
                    }
                ],
            },
            "logprobs": {"content": [{"token": "Hello", "logprob": -0.5, "bytes": [72], "top_logprobs": []}]},
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ],
    "system_fingerprint": "vllm-0.32.0-7a0ec9e0",
    "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0, "created_cache_tokens": 0}},
    "metrics": {"time_to_first_token_ms": 3.5},
}


def whole(document: Any, status: int = 200, content_type: str = "application/json") -> Answer:
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return Answer(status, content_type, text.encode())


def changed(change: Callable[[dict[str, Any]], object]) -> Answer:
    document = deepcopy(CHAT)
    change(document)
    return whole(document)


def move_to_end(target: dict[str, Any], key: str) -> None:
    target[key] = target.pop(key)


def test_equal_answers_have_no_difference() -> None:
    assert compare_answers(whole(CHAT), whole(CHAT)) == []


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda d: d["choices"][0]["message"].update(content="Hallo"), "choices[0].message.content"),
        (lambda d: d["choices"][0].update(finish_reason="length"), "choices[0].finish_reason"),
        (lambda d: d["choices"][0].update(stop_reason=1017), "choices[0].stop_reason"),
        (lambda d: d["choices"][0].pop("stop_reason"), "choices[0].stop_reason.$missing"),
        (lambda d: d["choices"][0].update(token_ids=None), "choices[0].token_ids.$extra"),
        (lambda d: move_to_end(d["choices"][0], "index"), "choices[0].$key_order"),
        (lambda d: move_to_end(d, "id"), "$key_order"),
        (lambda d: d["choices"].append(d["choices"][0]), "choices.$length"),
        (lambda d: d["usage"].update(prompt_tokens=4), "usage.prompt_tokens"),
        (lambda d: d["usage"].update(prompt_tokens=3.0), "usage.prompt_tokens"),
        (lambda d: d["usage"].update(prompt_tokens=True), "usage.prompt_tokens"),
        (
            lambda d: d["usage"]["prompt_tokens_details"].update(cached_tokens=32),
            "usage.prompt_tokens_details.cached_tokens",
        ),
        (lambda d: d["usage"].update(prompt_tokens_details=None), "usage.prompt_tokens_details"),
        (lambda d: d.update(id="cmpl-be229b4722988a5d"), "id"),
        (lambda d: d.update(id="chatcmpl-be229b4722988a5"), "id"),
        (lambda d: d.update(id=None), "id"),
        (lambda d: d.update(created="1796097378"), "created"),
        (lambda d: d.update(model="other"), "model"),
        (lambda d: d.update(system_fingerprint=7), "system_fingerprint"),
        (
            lambda d: d["choices"][0]["message"]["tool_calls"][0].update(id="call_1"),
            "choices[0].message.tool_calls[0].id",
        ),
        (
            lambda d: d["choices"][0]["logprobs"]["content"][0].update(logprob=-0.6),
            "choices[0].logprobs.content[0].logprob",
        ),
        (lambda d: d["metrics"].update(time_to_first_token_ms=None), "metrics.time_to_first_token_ms"),
    ],
)
def test_a_difference_is_found(change: Callable[[dict[str, Any]], object], path: str) -> None:
    [difference] = compare_answers(whole(CHAT), changed(change))

    assert (difference.path, difference.tolerance) == (path, None)


@pytest.mark.parametrize(
    ("change", "tolerance"),
    [
        (lambda d: d.update(id="chatcmpl-0123456789abcdef"), Tolerance.RESPONSE_ID),
        (lambda d: d.update(created=5), Tolerance.CREATED),
        (lambda d: d.update(system_fingerprint=None), Tolerance.SYSTEM_FINGERPRINT),
        (lambda d: d.update(system_fingerprint="vllm-0.32.0-tp2-00000000"), Tolerance.SYSTEM_FINGERPRINT),
        (
            lambda d: d["choices"][0]["message"]["tool_calls"][0].update(id="chatcmpl-tool-fedcba9876543210"),
            Tolerance.TOOL_CALL_ID,
        ),
        (lambda d: d["choices"][0]["logprobs"]["content"][0].update(logprob=-0.50001), Tolerance.LOGPROB_NOISE),
        (lambda d: d["metrics"].update(time_to_first_token_ms=9.0), Tolerance.TIMING),
    ],
)
def test_a_documented_difference_is_tolerated(change: Callable[[dict[str, Any]], object], tolerance: Tolerance) -> None:
    [difference] = compare_answers(whole(CHAT), changed(change))

    assert difference.tolerance is tolerance


@pytest.mark.parametrize("details", [None, {"cached_tokens": 32, "created_cache_tokens": 0}])
def test_cache_counts_are_tolerated_only_where_caches_may_differ(details: Any) -> None:
    ours = changed(lambda d: d["usage"].update(prompt_tokens_details=details))

    [difference] = compare_answers(whole(CHAT), ours, is_cache_comparable=False)

    assert difference.tolerance is Tolerance.CACHED_TOKENS


def test_a_client_given_id_has_no_random_part() -> None:
    left, right = (changed(lambda d, name=name: d.update(id=f"chatcmpl-{name}")) for name in ("mine", "yours"))

    [difference] = compare_answers(left, right)

    assert difference.tolerance is None


@pytest.mark.parametrize(
    ("identifier", "shape"),
    [
        ("chatcmpl-be229b4722988a5d", "chatcmpl-<hex 16>"),
        ("cmpl-8c7f0d9e-1b2a-4c3d-8e9f-0a1b2c3d4e5f-0", "cmpl-<uuid>-0"),
        ("functions.get_time:0", "functions.get_time:0"),
    ],
)
def test_the_shape_of_an_id(identifier: str, shape: str) -> None:
    assert id_shape(identifier) == shape


ERROR = {"error": {"message": "no", "type": "BadRequestError", "param": "n", "code": 400}}


@pytest.mark.parametrize(
    ("field", "value"), [("message", "nope"), ("type", "Bad Request"), ("param", None), ("code", 422)]
)
def test_an_error_is_compared_field_by_field(field: str, value: object) -> None:
    [difference] = compare_answers(whole(ERROR, 400), whole({"error": {**ERROR["error"], field: value}}, 400))

    assert (difference.path, difference.tolerance) == (f"error.{field}", None)


def test_another_status_hides_no_body() -> None:
    differences = compare_answers(whole(ERROR, 400), whole(CHAT))

    assert [difference.path for difference in differences] == ["$status", "$body"]


def test_another_content_type_is_found() -> None:
    [difference] = compare_answers(whole(CHAT), whole(CHAT, content_type="application/json; charset=utf-8"))

    assert difference.path == "$content_type"


def test_an_unanswered_case_never_passes() -> None:
    silent = Answer(0, "", b"ServerDisconnectedError")

    assert [difference.path for difference in compare_answers(silent, silent)] == ["$connection"]
    assert [difference.path for difference in compare_answers(whole(CHAT), silent)] == ["$status", "$body"]


@pytest.mark.parametrize(
    ("native", "ours", "path"),
    [
        (b'{"a":"\xc3\xa9"}', b'{"a":"\\u00e9"}', "$writing"),
        (b'{"a":1}', b'{"a": 1}', "$writing"),
        (b'{"a":1}', b'{"a":1,"a":1}', "$repeated_keys"),
        (b"not json", b"neither json", "$body"),
        (b'{"a":1}', b"not json", "$body"),
    ],
)
def test_bytes_that_mean_the_same_are_not_the_same(native: bytes, ours: bytes, path: str) -> None:
    answers = (Answer(200, "application/json", body) for body in (native, ours))

    assert [difference.path for difference in compare_answers(*answers)] == [path]


@pytest.mark.parametrize("body", [b'{"a":"\\u0001"}', b'{"a":"\\\\u00e9"}', b'{"a: b":"c, d"}'])
def test_control_characters_and_text_say_nothing_about_the_writing(body: bytes) -> None:
    plain = Answer(200, "application/json", b'{"a":1}')

    assert "$writing" not in [
        difference.path for difference in compare_answers(plain, Answer(200, "application/json", body))
    ]
