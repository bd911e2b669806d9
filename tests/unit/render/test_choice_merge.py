"""The client's stream, byte for byte; expected events are native vLLM 0.32's, with the values of these requests."""

from typing import Any

from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.render.choice_merge import ChoiceMerge, StreamOptions
from motor.coordinator.render.prompt_stream import ChoiceEvent


def merge_of(api: Api, fields: dict[str, Any], prompts: list[list[int]], n: int = 1) -> ChoiceMerge:
    client = ClientRequest(request_id="r", peer_id="r", api=api, body=b"", fields=fields)
    return ChoiceMerge(client, prompts, n, created=5, model="m", options=StreamOptions.of(client))


def chat(choices: str, tail: str = "") -> bytes:
    head = '{"id":"chatcmpl-r","object":"chat.completion.chunk","created":5,"model":"m","choices":['
    return f"data: {head}{choices}]{tail}}}\n\n".encode()


def text(choices: str, tail: str = "") -> bytes:
    head = '{"id":"cmpl-r","object":"text_completion","created":5,"model":"m","choices":['
    return f"data: {head}{choices}]{tail}}}\n\n".encode()


def test_a_chat_stream() -> None:
    merge = merge_of(Api.CHAT, {}, [[1, 2, 3]])
    assert merge.opening() == chat(
        '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}',
        ',"prompt_token_ids":null,"prompt_text":null',
    )
    assert merge.opening() == b""
    assert merge.event(0, 0, ChoiceEvent([7], delta={"content": "Hi"})) == chat(
        '{"index":0,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null,"token_ids":null}'
    )
    assert merge.event(0, 0, ChoiceEvent([8], delta={}, finish_reason="stop")) == chat(
        '{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":null,"token_ids":null}'
    )
    assert merge.closing() == b"data: [DONE]\n\n"


def test_usage_is_one_chunk_for_the_whole_request() -> None:
    fields = {"stream_options": {"include_usage": True}}
    merge = merge_of(Api.COMPLETIONS, fields, [[1, 2, 3], [4]], n=2)
    for prompt_index in range(2):
        for choice_index in range(2):
            merge.event(prompt_index, choice_index, ChoiceEvent([9] * (choice_index + 1), text="x"))
    merge.skip(1, 1, 5)
    merge.take_prompt_details({"cached_tokens": 2, "multimodal_tokens": None})
    merge.take_prompt_details({"cached_tokens": 7})
    assert merge.closing() == (
        text(
            "",
            ',"usage":{"prompt_tokens":4,"total_tokens":15,"completion_tokens":11,'
            '"prompt_tokens_details":{"cached_tokens":2}}',
        )
        + b"data: [DONE]\n\n"
    )


def test_continuous_usage_counts_each_choice() -> None:
    fields = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    merge = merge_of(Api.CHAT, fields, [[1, 2, 3]])
    assert b'"usage":{"prompt_tokens":3,"total_tokens":3,"completion_tokens":0}' in merge.opening()
    merge.event(0, 0, ChoiceEvent([7, 8], delta={"content": "Hi"}))
    last = merge.event(0, 0, ChoiceEvent([9], delta={"content": "!"}))
    assert b'"usage":{"prompt_tokens":3,"total_tokens":6,"completion_tokens":3}' in last


def test_indices_are_prompt_times_n_plus_choice() -> None:
    merge = merge_of(Api.COMPLETIONS, {}, [[1], [2], [3]], n=2)
    assert merge.opening() == b""
    events = [merge.event(p, c, ChoiceEvent([5], text="t")) for p in range(3) for c in range(2)]
    assert events == [
        text(
            f'{{"index":{index},"text":"t","logprobs":null,"finish_reason":null,"stop_reason":null,'
            '"prompt_token_ids":null,"token_ids":null}'
        )
        for index in range(6)
    ]


def test_prompt_ids_come_once() -> None:
    merge = merge_of(Api.COMPLETIONS, {"return_token_ids": True}, [[1], [2, 3]])
    first, second = (merge.event(1, 0, ChoiceEvent([5], text="t")) for _ in range(2))
    assert b'"prompt_token_ids":[2,3],"token_ids":[5]' in first
    assert b'"prompt_token_ids":null,"token_ids":[5]' in second
    chat_merge = merge_of(Api.CHAT, {"return_token_ids": True}, [[1, 2]])
    assert b',"prompt_token_ids":[1,2],"prompt_text":null' in chat_merge.opening()
