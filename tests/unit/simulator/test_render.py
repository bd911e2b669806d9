"""The Render sidecar: literal vLLM 0.32 answers, faults and bad input."""

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from motor.simulator import ModelFolder, RenderSimulator

TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
EMOJI_CHAT = {
    "model": "tiny",
    "temperature": 0,
    "messages": [{"role": "user", "content": "Show me emoji."}],
    "chat_template_kwargs": {"enable_thinking": False},
    "stream": False,
}
EMOJI_RENDERED = (
    '{"request_id": "chatcmpl-r1", "token_ids": [1016, 467, 198, 885, 596, 459, 288, 813, 13, 1017, 198, 1016, 587, '
    '198, 1022, 321, 1023, 321], "token_offsets": null, "features": null, "content_parts": null, "sampling_params": '
    '{"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "temperature": 0.0, "stop": [], '
    '"stop_token_ids": [], "max_tokens": 2030, "skip_special_tokens": false, "output_kind": 2, "skip_clone": true, '
    '"bad_words": [], "skip_reading_prefix_cache": false}, "model": "tiny", "reasoning_ended": true, '
    '"reasoning_parser_kwargs": {"chat_template_kwargs": {"cohere_format": "cmd4", "enable_thinking": false, '
    '"add_generation_prompt": true, "continue_final_message": false}}, "return_token_ids": null, "output_mode": '
    '"tokens", "stream": false, "stream_options": null, "cache_salt": null, "priority": 0, "kv_transfer_params": null, '
    '"ec_transfer_params": null}'
)
CHAT_CHUNK = (
    '{"chunk": {"id": "g1", "object": "chat.completion.chunk", "created": 0, "model": "tiny", "choices": [{"index": 0, '
    '"delta": {"role": "assistant", "content": "Part", "reasoning": null}, "logprobs": null, "finish_reason": null, '
    '"stop_reason": null, "token_ids": null}], "usage": null, "system_fingerprint": null, "prompt_token_ids": null, '
    '"prompt_text": null, "metrics": null}, "stream_state": {"prev_tokens": [], "prefix_offset": 0, "read_offset": 0, '
    '"role_sent": true, "logprob_context_token_ids": [], "logprob_text_offset": 0, "output_token_ids": [882], '
    '"output_chunk_lens": [1], "tools_streamed": false, "last_tool_call_ids": []}}'
)
COMPLETION_CHUNK = (
    '{"chunk": {"id": "g1", "object": "text_completion", "created": 0, "model": "tiny", "choices": [{"index": 0, '
    '"text": " j", "logprobs": null, "finish_reason": null, "stop_reason": null, "prompt_token_ids": null, '
    '"token_ids": null}], "usage": null, "system_fingerprint": null, "metrics": null}, "stream_state": {"prev_tokens": '
    '["Ġj"], "prefix_offset": 0, "read_offset": 1, "role_sent": false, "logprob_context_token_ids": [716], '
    '"logprob_text_offset": 2, "output_token_ids": [], "output_chunk_lens": [], "tools_streamed": false, '
    '"last_tool_call_ids": []}}'
)


@pytest.fixture
async def render(model: ModelFolder) -> AsyncIterator[RenderSimulator]:
    async with RenderSimulator(model=model, served_model_name="tiny", max_model_len=2048) as simulator:
        yield simulator


async def post(client: aiohttp.ClientSession, url: str, body: object) -> tuple[int, Any]:
    async with client.post(url, json=body, headers={"X-Request-Id": "r1"}) as response:
        return response.status, json.loads(re.sub(r'"created":\d+', '"created":0', await response.text()))


async def test_a_rendered_chat_is_vllms(render: RenderSimulator, client: aiohttp.ClientSession) -> None:
    status, answer = await post(client, render.url + "/v1/chat/completions/render", EMOJI_CHAT)
    assert status == 200
    assert json.dumps(answer) == EMOJI_RENDERED


async def test_a_limit_of_16_disappears_as_in_vllm(render: RenderSimulator, client: aiohttp.ClientSession) -> None:
    limits = []
    for max_tokens in (15, 16, 17):
        _, answer = await post(
            client, render.url + "/v1/chat/completions/render", {**EMOJI_CHAT, "max_tokens": max_tokens}
        )
        limits.append(answer["sampling_params"].get("max_tokens"))
    _, answers = await post(client, render.url + "/v1/completions/render", {"prompt": "The quick brown fox"})
    assert limits == [15, None, 17]
    assert "max_tokens" not in answers[0]["sampling_params"]


async def test_completions_render_to_a_list(render: RenderSimulator, client: aiohttp.ClientSession) -> None:
    url = render.url + "/v1/completions/render"
    _, one = await post(client, url, {"prompt": "The quick brown fox"})
    _, two = await post(client, url, {"prompt": [[5, 6], [7]], "max_tokens": 3, "stop": "abc"})
    assert [(item["request_id"], item["token_ids"]) for item in one] == [
        ("cmpl-r1", [514, 609, 411, 759, 964, 621, 87])
    ]
    assert [(item["request_id"], item["token_ids"]) for item in two] == [("cmpl-r1-0", [5, 6]), ("cmpl-r1-1", [7])]
    assert two[0]["sampling_params"].items() >= {"stop": ["abc"], "output_text_buffer_length": 2}.items()
    assert two[0]["reasoning_ended"] is None


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (
            "chat/completions",
            {
                "chat_request": EMOJI_CHAT,
                "prompt_token_ids": [1016, 467, 198, 885, 1017, 198, 1016, 587, 198, 1022, 321, 1023, 321],
                "generate_chunk": {"request_id": "g1", "choices": [{"index": 0, "token_ids": [882]}]},
            },
            CHAT_CHUNK,
        ),
        (
            "completions",
            {
                "prompt_token_ids": [514, 609, 411, 759, 964, 621, 87],
                "generate_chunk": {"request_id": "g1", "choices": [{"index": 0, "token_ids": [716]}]},
            },
            COMPLETION_CHUNK,
        ),
    ],
)
async def test_a_derendered_chunk_is_vllms(
    render: RenderSimulator, client: aiohttp.ClientSession, path: str, body: dict[str, Any], expected: str
) -> None:
    status, answer = await post(client, render.url + f"/v1/{path}/derender", {"stream": True, **body})
    assert status == 200
    assert json.dumps(answer, ensure_ascii=False) == expected


async def test_the_terminating_token_leaks_into_chat_as_in_vllm(
    render: RenderSimulator, client: aiohttp.ClientSession
) -> None:
    choice = {"index": 0, "finish_reason": "stop", "token_ids": [513, 593, 1017]}
    body = {
        "generate_response": {"request_id": "g1", "choices": [choice]},
        "prompt_token_ids": [1023],
        "chat_request": {"messages": []},
    }
    _, answer = await post(client, render.url + "/v1/chat/completions/derender", body)
    assert answer["choices"][0]["message"]["content"] == "Hello<|im_end|>"
    assert answer["usage"].items() >= {"prompt_tokens": 0, "completion_tokens": 3}.items()


async def test_complete_tool_calls_keep_the_engines_finish_reason(
    render: RenderSimulator, client: aiohttp.ClientSession, model: ModelFolder
) -> None:
    ids = model.encode('Wait.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "A"}}\n</tool_call>')
    choice = {"index": 0, "finish_reason": "stop", "token_ids": [*ids, 1017]}
    body = {
        "generate_response": {"request_id": "g1", "choices": [choice]},
        "prompt_token_ids": [1023],
        "chat_request": {"messages": [], "tools": [TOOL]},
    }
    _, answer = await post(client, render.url + "/v1/chat/completions/derender", body)
    message = answer["choices"][0]["message"]
    assert (message["content"], answer["choices"][0]["finish_reason"]) == ("Wait.\n", "stop")
    assert message["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "A"}'}


async def test_logprobs_become_texts(render: RenderSimulator, client: aiohttp.ClientSession) -> None:
    entry = {"token_id": 716, "logprob": -0.5, "rank": 1}
    logprobs = {"content": [{**entry, "top_logprobs": [entry]}]}
    choice = {"index": 0, "token_ids": [716], "logprobs": logprobs}
    answer = {"request_id": "g1", "choices": [choice]}
    _, completion = await post(
        client, render.url + "/v1/completions/derender", {"generate_responses": [answer], "prompt_tokens": [7]}
    )
    chat = {"generate_response": answer, "chat_request": {"messages": []}, "prompt_token_ids": [1023]}
    _, chat_answer = await post(client, render.url + "/v1/chat/completions/derender", chat)
    assert completion["choices"][0]["logprobs"] == {
        "text_offset": [0],
        "token_logprobs": [-0.5],
        "tokens": [" j"],
        "top_logprobs": [{" j": -0.5}],
    }
    token = {"token": " j", "logprob": -0.5, "bytes": [32, 106]}
    assert chat_answer["choices"][0]["logprobs"] == {"content": [{**token, "top_logprobs": [token]}]}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("chat/completions/render", {"messages": [], "model": "other"}, 404, "does not exist"),
        ("chat/completions/render", {"messages": []}, 400, "empty"),
        ("chat/completions/render", {}, 400, "required"),
        ("chat/completions/render", {**EMOJI_CHAT, "n": 2}, 400, "n must be 1 when using greedy sampling, got 2."),
        ("chat/completions/render", {**EMOJI_CHAT, "max_tokens": 4000}, 400, "cannot be greater"),
        ("chat/completions/render", {**EMOJI_CHAT, "max_tokens": "many"}, 400, "integer"),
        ("completions/render", {"prompt": ""}, 400, "empty"),
        ("completions/render", {"prompt": [1] * 2048}, 400, "maximum context length is 2048"),
        ("chat/completions/derender", {"stream": True}, 400, "generate_chunk"),
        (
            "chat/completions/derender",
            {"stream": True, "generate_chunk": {"request_id": "g", "choices": []}},
            400,
            "chat_request is required",
        ),
        (
            "chat/completions/derender",
            {
                "generate_response": {"request_id": "g", "choices": [{"index": 0, "token_ids": []}]},
                "chat_request": {"messages": []},
            },
            400,
            "choice 0 has empty or null token_ids",
        ),
        ("completions/derender", {"generate_responses": []}, 400, "must not be empty"),
    ],
)
async def test_bad_requests_get_vllms_errors(
    *, render: RenderSimulator, client: aiohttp.ClientSession, path: str, body: object, status: int, message: str
) -> None:
    answered, answer = await post(client, f"{render.url}/v1/{path}", body)
    assert (answered, answer["error"]["code"]) == (status, status)
    assert message in answer["error"]["message"]


async def test_tokenize_and_detokenize(render: RenderSimulator, client: aiohttp.ClientSession) -> None:
    _, answer = await post(client, render.url + "/tokenize", {"prompt": "The quick brown fox"})
    assert answer == {
        "count": 7,
        "max_model_len": 2048,
        "tokens": [514, 609, 411, 759, 964, 621, 87],
        "token_strs": None,
    }
    _, answer = await post(client, render.url + "/detokenize", {"tokens": answer["tokens"]})
    assert answer == {"prompt": "The quick brown fox"}


async def test_faults_strike_their_endpoint(render: RenderSimulator, client: aiohttp.ClientSession) -> None:
    url = render.url + "/v1/chat/completions/render"
    render.faults.set("status", status=503, endpoint="derender")
    assert (await post(client, url, EMOJI_CHAT))[0] == 200
    assert (await post(client, render.url + "/v1/chat/completions/derender", {}))[0] == 503
    render.faults.set("invalid_structure", endpoint="render", times=1)
    assert await post(client, url, EMOJI_CHAT) == (200, {})
    render.faults.set("refuse", endpoint="render", times=1)
    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await post(client, url, EMOJI_CHAT)
    assert (await post(client, url, EMOJI_CHAT))[0] == 200
    assert (render.stats.num_in_flight, render.stats.num_renders, render.stats.num_derenders) == (0, 4, 1)


async def test_a_sidecar_without_parsers_leaves_markers_in_the_text(
    model: ModelFolder, client: aiohttp.ClientSession
) -> None:
    async with RenderSimulator(model=model, has_parsers=False) as render:
        choice = {"index": 0, "token_ids": model.encode("<think>why</think>so")}
        body = {"generate_response": {"request_id": "g1", "choices": [choice]}}
        _, answer = await post(client, render.url + "/v1/chat/completions/derender", body)
        _, rendered = await post(
            client, render.url + "/v1/chat/completions/render", {"messages": EMOJI_CHAT["messages"]}
        )
    assert answer["choices"][0]["message"]["content"] == "<think>why</think>so"
    assert (rendered["reasoning_ended"], "skip_special_tokens" in rendered["sampling_params"]) == (None, False)
