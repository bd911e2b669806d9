"""The wire contract of docs/live-parsers.md, against a real `vllm launch render` with and without the plugin."""

from collections.abc import Iterator
from typing import Any

import pytest

from .sidecar import CONTINUE_PATH, LIVE_PATH, STANDARD_PATH, Sidecar, running_sidecar

pytestmark = pytest.mark.server

PROMPT_TOKEN_IDS = [1016, 12, 13]
CHAT_REQUEST = {
    "model": "tiny",
    "messages": [],
    "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}],
}
OUTPUT = (
    "<think>So 你好 🎉</think>Well.\n<tool_call>\n"
    '{"name": "get_weather", "arguments": {"city": "Genève"}}\n</tool_call>'
)


@pytest.fixture(scope="module")
def sidecar() -> Iterator[Sidecar]:
    with running_sidecar("hermes", "qwen3") as sidecar:
        yield sidecar


@pytest.fixture(scope="module")
def stock_sidecar() -> Iterator[Sidecar]:
    with running_sidecar("hermes", "qwen3", MOTOR_LIVE_PARSERS_ENABLE="0") as sidecar:
        yield sidecar


@pytest.fixture(scope="module")
def chunks(sidecar: Sidecar) -> list[dict[str, Any]]:
    """The engine's chunks of one stream, two tokens each, the last with a finish reason."""
    body = {"model": "tiny", "prompt": OUTPUT, "add_special_tokens": False}
    token_ids = sidecar.post("/tokenize", body)["tokens"]
    pairs = [token_ids[i : i + 2] for i in range(0, len(token_ids), 2)]
    choices: list[dict[str, Any]] = [{"index": 0, "token_ids": pair} for pair in pairs]
    choices[-1]["finish_reason"] = "stop"
    return [{"request_id": "r-1", "choices": [choice]} for choice in choices]


def full_body(chunk: dict[str, Any], state: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "stream": True,
        "model": "tiny",
        "generate_chunk": chunk,
        "stream_state": state,
        "prompt_token_ids": PROMPT_TOKEN_IDS,
        "prompt_tokens": len(PROMPT_TOKEN_IDS),
        "chat_request": CHAT_REQUEST,
    }


def rebuilt_state(read: list[dict[str, Any]], stream_state: dict[str, Any]) -> dict[str, Any]:
    """The full state after the chunks `read`, by the rule of the contract."""
    per_chunk = [choice["token_ids"] for chunk in read for choice in chunk["choices"] if choice["token_ids"]]
    return stream_state | {
        "output_token_ids": [token_id for token_ids in per_chunk for token_id in token_ids],
        "output_chunk_lens": [len(token_ids) for token_ids in per_chunk],
    }


def comparable(chunk: dict[str, Any]) -> dict[str, Any]:
    """A derendered chunk without what vLLM draws anew in every call: the creation time and the tool call ids."""
    choices = []
    for choice in chunk["choices"]:
        tool_calls = [call | {"id": call["id"] and "id"} for call in choice["delta"].get("tool_calls", [])]
        choices.append(choice | {"delta": choice["delta"] | {"tool_calls": tool_calls}})
    return chunk | {"created": 0, "choices": choices}


def standard_answers(sidecar: Sidecar, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []
    state = None
    for chunk in chunks:
        answers.append(sidecar.post(STANDARD_PATH, full_body(chunk, state)))
        state = answers[-1]["stream_state"]
    return answers


@pytest.fixture(scope="module")
def stock_answers(stock_sidecar: Sidecar, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return standard_answers(stock_sidecar, chunks)


def test_vllm_loads_the_plugin(sidecar, stock_sidecar):
    assert any(f"Route: {CONTINUE_PATH}" in line for line in sidecar.lines)
    assert not any(LIVE_PATH in line for line in stock_sidecar.lines)


def test_the_standard_path_answers_as_without_the_plugin_and_replays_nothing(sidecar, chunks, stock_answers):
    _, before = sidecar.call("GET", LIVE_PATH)
    answers = standard_answers(sidecar, chunks)
    _, after = sidecar.call("GET", LIVE_PATH)
    for answer, expected in zip(answers, stock_answers, strict=True):
        assert comparable(answer["chunk"]) == comparable(expected["chunk"])
        known = {"last_tool_call_ids": len(expected["stream_state"]["last_tool_call_ids"])}
        assert answer["stream_state"] | known == expected["stream_state"] | known | {
            "last_tool_call_ids": len(answer["stream_state"]["last_tool_call_ids"])
        }
    assert after["num_hits"] - before["num_hits"] == len(chunks) - 1
    assert after["num_misses"] - before["num_misses"] == 1


def test_a_stream_continues_by_continuations_alone(sidecar, chunks, stock_answers):
    answer = sidecar.post(LIVE_PATH, full_body(chunks[0], None))
    answers = [answer]
    for chunk in chunks[1:]:
        body = {"continuation": answer["continuation"], "generate_chunk": chunk}
        answer = sidecar.post(CONTINUE_PATH, body)
        answers.append(answer)
    for answer, expected in zip(answers, stock_answers, strict=True):
        assert comparable(answer["chunk"]) == comparable(expected["chunk"])
        assert set(answer["stream_state"]) == {"role_sent", "tools_streamed", "last_tool_call_ids"}
    assert answers[-1]["continuation"] is None
    assert sidecar.call("GET", LIVE_PATH)[1]["num_entries"] == 0


@pytest.mark.parametrize("path", [STANDARD_PATH, LIVE_PATH])
def test_the_full_state_can_be_rebuilt_at_any_chunk(sidecar, chunks, stock_answers, path):
    for num_read in range(1, len(chunks)):
        answer = sidecar.post(LIVE_PATH, full_body(chunks[0], None))
        for chunk in chunks[1:num_read]:
            answer = sidecar.post(CONTINUE_PATH, {"continuation": answer["continuation"], "generate_chunk": chunk})
        state = rebuilt_state(chunks[:num_read], answer["stream_state"])
        resumed = sidecar.post(path, full_body(chunks[num_read], state))
        assert comparable(resumed["chunk"]) == comparable(stock_answers[num_read]["chunk"])


def test_a_continuation_is_good_for_one_call(sidecar, chunks):
    first = sidecar.post(LIVE_PATH, full_body(chunks[0], None))
    body = {"continuation": first["continuation"], "generate_chunk": chunks[1]}
    second = sidecar.post(CONTINUE_PATH, body)
    status, error = sidecar.call("POST", CONTINUE_PATH, body)
    assert status == 409
    assert error["error"]["code"] == "unknown_continuation"
    repeated = sidecar.post(LIVE_PATH, full_body(chunks[1], rebuilt_state(chunks[:1], first["stream_state"])))
    assert comparable(repeated["chunk"]) == comparable(second["chunk"])
    assert repeated["continuation"] not in (None, second["continuation"])


def test_a_refused_chunk_is_refused_as_by_vllm(sidecar, stock_sidecar, chunks):
    two_choices = chunks[1] | {"choices": chunks[1]["choices"] * 2}
    first = sidecar.post(LIVE_PATH, full_body(chunks[0], None))
    refused = sidecar.call(
        "POST", CONTINUE_PATH, {"continuation": first["continuation"], "generate_chunk": two_choices}
    )
    state = rebuilt_state(chunks[:1], first["stream_state"])
    assert refused == stock_sidecar.call("POST", STANDARD_PATH, full_body(two_choices, state))
    assert refused[0] == 400


@pytest.mark.parametrize("path", [LIVE_PATH, CONTINUE_PATH])
@pytest.mark.parametrize("body", ["{", {}, {"continuation": 1, "generate_chunk": {}}])
def test_a_malformed_body_is_a_400_of_the_usual_shape(sidecar, path, body):
    status, error = sidecar.call("POST", path, body)
    assert status == 400
    assert set(error["error"]) == {"message", "type", "param", "code"}


def test_a_sidecar_without_the_plugin_knows_no_live_path(stock_sidecar, chunks):
    assert stock_sidecar.call("GET", LIVE_PATH)[0] == 404
    assert stock_sidecar.call("POST", LIVE_PATH, full_body(chunks[0], None))[0] == 404
    body = {"continuation": "0" * 32, "generate_chunk": chunks[1]}
    assert stock_sidecar.call("POST", CONTINUE_PATH, body)[0] == 404


def test_the_description_counts(sidecar):
    status, description = sidecar.call("GET", LIVE_PATH)
    assert status == 200
    assert description["version"] == 1
    counts = {"num_entries", "num_tokens", "num_hits", "num_misses", "num_evictions"}
    assert set(description) == {"version"} | counts
