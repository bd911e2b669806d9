"""Streams: framing, chunk shapes and joined values; only the places of the cuts are free."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from motor.parity.comparison import Answer, compare_answers
from motor.parity.difference import Tolerance
from motor.parity.event_stream import parse_event_stream

HEAD: dict[str, Any] = {
    "id": "chatcmpl-be229b4722988a5d",
    "object": "chat.completion.chunk",
    "created": 1,
    "model": "m",
}
CONTENT_TYPE = "text/event-stream; charset=utf-8"


def opener(index: int = 0) -> dict[str, Any]:
    delta = {"role": "assistant", "content": ""}
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
    return {**HEAD, "choices": [choice], "prompt_token_ids": None}


def piece(delta: dict[str, Any], index: int = 0, **extra: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, "token_ids": None, **extra}
    return {**HEAD, "choices": [choice]}


def end(delta: dict[str, Any] | None = None, index: int = 0, reason: str = "stop") -> dict[str, Any]:
    choice = {"index": index, "delta": delta or {}, "logprobs": None, "finish_reason": reason, "stop_reason": None}
    return {**HEAD, "choices": [{**choice, "token_ids": None}]}


USAGE = {**HEAD, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}


def call(**function: str) -> dict[str, Any]:
    start = {"id": "chatcmpl-tool-0123456789abcdef", "type": "function"} if "name" in function else {}
    return {"tool_calls": [{"index": 0, **start, "function": function}]}


def body(chunks: Sequence[Any]) -> bytes:
    events = [json.dumps(chunk, separators=(",", ":"), ensure_ascii=False) for chunk in chunks]
    return b"".join(f"data: {event}\n\n".encode() for event in [*events, "[DONE]"])


def stream(*chunks: Any) -> Answer:
    return Answer(200, CONTENT_TYPE, body(chunks))


def paths(native: Answer, ours: Answer) -> list[str]:
    return [difference.path for difference in compare_answers(native, ours) if difference.tolerance is None]


NATIVE = stream(opener(), piece({"reasoning": "hm"}), piece({"content": "He"}), piece({"content": "llo"}), end(), USAGE)


def test_equal_streams_have_no_difference() -> None:
    assert compare_answers(NATIVE, NATIVE) == []


def test_the_same_keys_with_other_cuts_are_no_difference() -> None:
    ours = stream(
        opener(), piece({"reasoning": "h"}), piece({"reasoning": "m"}), piece({"content": "Hello"}), end(), USAGE
    )

    assert compare_answers(NATIVE, ours) == []


@pytest.mark.parametrize(
    "ours",
    [
        stream(opener(), piece({"reasoning": "hm", "content": "Hello"}), end(), USAGE),
        stream(opener(), piece({"reasoning": "hm"}), piece({"content": "Hel"}), end({"content": "lo"}), USAGE),
        stream(opener(), end({"reasoning": "hm", "content": "Hello"}), USAGE),
    ],
)
def test_other_cuts_between_fields_are_documented(ours: Answer) -> None:
    [difference] = compare_answers(NATIVE, ours)

    assert difference.tolerance is Tolerance.CHUNK_BOUNDARIES


REASONED, HELLO, LLO = piece({"reasoning": "hm"}), piece({"content": "Hello"}), piece({"content": "llo"})


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (stream(opener(), REASONED, piece({"content": "Hallo"}), end(), USAGE), ["choices[0].delta.content"]),
        (stream(opener(), piece({"reasoning": "hmm"}), HELLO, end(), USAGE), ["choices[0].delta.reasoning"]),
        (stream(opener(), REASONED, HELLO, end(reason="length"), USAGE), ["choices[0].finish_reason"]),
        (stream(opener(), REASONED, HELLO, end()), ["$other_chunks"]),
        (stream(opener(), REASONED, HELLO, end(), USAGE, USAGE), ["$other_chunks"]),
        (
            stream(opener(), REASONED, HELLO, end(), {**USAGE, "usage": {"prompt_tokens": 4, "completion_tokens": 2}}),
            ["usage.prompt_tokens"],
        ),
        (stream(REASONED, HELLO, end(), USAGE), ["prompt_token_ids.$missing", "choices[0].delta.role.$missing"]),
        (stream(opener(), REASONED, piece({"content": "Hello", "role": "assistant"}), end(), USAGE), ["shape"]),
        (stream(opener(), REASONED, piece({"content": "Hello", "tool_calls": None}), end(), USAGE), ["extra", "shape"]),
        (stream(opener(), REASONED, piece({"content": "Hello"}, stop_reason=None), end(), USAGE), ["shape"]),
        (stream(opener(), REASONED, {**HELLO, "usage": None}, end(), USAGE), ["shape"]),
        (stream(opener(), REASONED, HELLO, USAGE), ["choices[0].finish_reason", "stop", "shape"]),
        (stream(opener(), REASONED, HELLO, end(), {**USAGE, "id": "chatcmpl-0000000000000000"}), ["$drifting"]),
        (stream(opener(1), REASONED, HELLO, end(), USAGE), ["choices.$length", "$openers"]),
    ],
)
def test_everything_but_the_cuts_is_compared(ours: Answer, expected: list[str]) -> None:
    found = " ".join(paths(NATIVE, ours))

    assert found
    assert all(path in found for path in expected), found


def test_the_opening_chunk_carries_no_text() -> None:
    early = {**opener()["choices"][0], "delta": {"role": "assistant", "content": "Hello"}}
    native = stream(opener(), HELLO, end())
    ours = stream({**opener(), "choices": [early]}, end())

    assert "$openers" in paths(native, ours)


def test_key_order_within_a_chunk_counts() -> None:
    swapped = {key: HELLO[key] for key in reversed(HELLO)}

    assert paths(NATIVE, stream(opener(), REASONED, swapped, end(), USAGE)) == ["choices[0].$chunk_shapes"]


def test_key_order_within_a_delta_counts() -> None:
    both = stream(opener(), piece({"reasoning": "hm", "content": "x"}), end())
    reversed_order = stream(opener(), piece({"content": "x", "reasoning": "hm"}), end())

    assert paths(both, reversed_order) == ["choices[0].$chunk_shapes"]


def test_tool_calls_are_joined_by_index() -> None:
    native = stream(opener(), piece(call(name="f")), piece(call(arguments='{"a"')), piece(call(arguments=":1}")), end())
    same = stream(opener(), piece(call(name="f", arguments='{"a":1}')), end())
    other = stream(opener(), piece(call(name="f")), piece(call(arguments='{"a":2}')), end())

    assert paths(native, same) == []
    assert paths(native, other) == ["choices[0].delta.tool_calls[0].function.arguments"]


def test_a_tool_call_id_sent_twice_is_found() -> None:
    again = {"tool_calls": [{"index": 0, "id": "chatcmpl-tool-fedcba9876543210", "function": {"arguments": "{}"}}]}
    native = stream(opener(), piece(call(name="f")), piece(call(arguments="{}")), end())

    assert paths(native, stream(opener(), piece(call(name="f")), piece(again), end()))


def test_lists_go_on_where_they_ended() -> None:
    def ids(*groups: list[int]) -> Answer:
        return stream(opener(), *(piece({"content": "x"}, token_ids=group) for group in groups))

    assert paths(ids([1], [2, 3]), ids([1, 2, 3])) == ["choices[0].delta.content"]
    assert "choices[0].token_ids.$length" in paths(ids([1], [2, 3]), ids([1], [2]))
    assert "choices[0].token_ids[1]" in paths(ids([1], [2]), ids([1], [3]))


def test_choices_may_interleave() -> None:
    texts = [piece({"content": "a"}, 0), piece({"content": "b"}, 1), piece({"content": "c"}, 0)]
    ends = [end(index=0), end(index=1)]
    native = stream(opener(0), opener(1), *texts, *ends)
    ours = stream(opener(0), opener(1), texts[1], ends[1], texts[0], texts[2], ends[0])

    assert compare_answers(native, ours) == []
    assert paths(native, stream(opener(1), opener(0), *texts, *ends)) == ["$openers"]


def test_an_error_within_the_stream_is_compared_whole() -> None:
    error = {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}
    other = {"error": {**error["error"], "code": 500}}

    assert compare_answers(stream(error), stream(error)) == []
    assert paths(stream(error), stream(other)) == ["error.code"]
    assert "$other_chunks" in paths(stream(error), stream())


@pytest.mark.parametrize(
    ("sent", "flaws"),
    [
        (b"data: {}\n\ndata: [DONE]\n\n", ()),
        (b"data: {}\n\n", ("[DONE] sent 0 times",)),
        (b"data: {}\n\ndata: [DONE]\n\ndata: [DONE]\n\n", ("[DONE] sent 2 times",)),
        (b"data: [DONE]\n\ndata: {}\n\n", ("data after [DONE]",)),
        (b"data: {}\n\ndata: [DONE]\n", ("the last event has no blank line after it", "[DONE] sent 0 times")),
        (b"data: \xff\n\ndata: [DONE]\n\n", ("no UTF-8",)),
        (b": ping\n\ndata: [DONE]\n\n", ("comment",)),
        (b"data:{}\n\ndata: [DONE]\n\n", ("an event is no single `data: ` line",)),
        (b"event: x\ndata: {}\n\ndata: [DONE]\n\n", ("an event is no single `data: ` line",)),
        (b"data: {}\r\n\r\ndata: [DONE]\n\n", ("an event is no single `data: ` line", "[DONE] sent 0 times")),
    ],
)
def test_framing_is_strict(sent: bytes, flaws: tuple[str, ...]) -> None:
    found = parse_event_stream(sent).flaws

    assert len(found) == len(flaws)
    assert all(word in flaw for word, flaw in zip(flaws, found, strict=True)), found


def test_other_framing_is_a_difference() -> None:
    ours = Answer(200, CONTENT_TYPE, NATIVE.body.replace(b"data: [DONE]\n\n", b""))

    assert paths(NATIVE, ours) == ["$framing"]


def test_payloads_that_are_no_json_are_compared_as_text() -> None:
    broken = Answer(200, CONTENT_TYPE, b"data: {\n\ndata: [DONE]\n\n")

    assert paths(NATIVE, broken) == ["$payloads"]
    assert paths(broken, broken) == []


def test_completion_chunks_have_no_delta() -> None:
    def text(*pieces: str, reason: str = "length") -> Answer:
        reasons = [*[None] * (len(pieces) - 1), reason]
        choices = [{"index": 0, "text": part, "finish_reason": why} for part, why in zip(pieces, reasons, strict=True)]
        return stream(*({**HEAD, "choices": [choice]} for choice in choices))

    assert paths(text("a", "b", "c"), text("ab", "c")) == []
    assert paths(text("a", "b", "c"), text("abc")) == []
    assert paths(text("a", "b"), text("a", "c")) == ["choices[0].text"]
