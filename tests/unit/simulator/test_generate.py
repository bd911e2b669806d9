"""The generate endpoint's shapes, literally as vLLM 0.32 answers them, and its checks."""

import json
import re
from typing import Any

import aiohttp
import pytest

from motor.simulator import EngineSimulator, ModelFolder, ScriptedAnswers

PROMPT = [1016, 467, 198, 665, 788, 13, 1017, 198, 1016, 587, 198, 1022, 321, 1023, 321]
REQUEST: dict[str, Any] = {"request_id": "chatcmpl-a1", "token_ids": PROMPT, "sampling_params": {"temperature": 0.0}}

COMPLETE = (
    '{"request_id":"generate-tokens-chatcmpl-a1","model":"tiny","created":0,"usage":{"prompt_tokens":15,'
    '"total_tokens":28,"completion_tokens":13,"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":null,'
    '"multimodal_tokens":null},"completion_tokens_details":null},"prompt_logprobs":null,'
    '"prompt_token_id_logprobs":null,"prompt_token_ids":null,"mm_placeholders":null,"metrics":null,'
    '"kv_transfer_params":null,"ec_transfer_params":null,"output_mode":"tokens","choices":[{"index":0,'
    '"finish_reason":"stop","stop_reason":null,"token_ids":[513,593,546,0,605,267,76,267,611,569,783,13,1017],'
    '"routed_experts":null,"sampling_mask":null,"weight_versions":[{"version":"default","start":0,"end":13}],'
    '"logprobs":null}]}'
)
FIRST_EVENT = (
    'data: {"request_id":"generate-tokens-chatcmpl-a1","usage":null,"output_mode":"tokens","choices":[{"index":0,'
    '"finish_reason":null,"stop_reason":null,"token_ids":[513],"routed_experts":null,"sampling_mask":null,'
    '"weight_versions":null,"logprobs":null}]}'
)
LAST_EVENTS = [
    'data: {"request_id":"generate-tokens-chatcmpl-a1","usage":null,"output_mode":"tokens","choices":[{"index":0,'
    '"finish_reason":"stop","stop_reason":null,"token_ids":[1017],"routed_experts":null,"sampling_mask":null,'
    '"weight_versions":[{"version":"default","start":0,"end":13}],"logprobs":null}]}',
    'data: {"request_id":"generate-tokens-chatcmpl-a1","usage":{"prompt_tokens":15,"total_tokens":28,'
    '"completion_tokens":13,"prompt_tokens_details":{"cached_tokens":0}},"output_mode":"tokens","choices":[]}',
    "data: [DONE]",
]


@pytest.fixture
def engine(model: ModelFolder, answers: ScriptedAnswers) -> EngineSimulator:
    return EngineSimulator(model=model, script=answers, served_model_name="tiny", max_model_len=2048)


async def post(
    client: aiohttp.ClientSession, engine: EngineSimulator, body: object, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **(headers or {})}
    async with client.post(engine.url + "/inference/v1/generate", data=data, headers=headers) as response:
        return response.status, await response.text()


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


async def test_a_complete_answer_is_vllms(engine: EngineSimulator, client: aiohttp.ClientSession) -> None:
    async with engine:
        status, text = await post(client, engine, REQUEST)
    assert status == 200
    assert re.sub(r'"created":\d+', '"created":0', text) == COMPLETE


async def test_a_stream_is_vllms(engine: EngineSimulator, client: aiohttp.ClientSession) -> None:
    body = {**REQUEST, "stream": True, "stream_options": {"include_usage": True}}
    async with engine:
        status, text = await post(client, engine, body)
    events = text.split("\n\n")
    assert status == 200
    assert events[0] == FIRST_EVENT
    assert events[-4:] == [*LAST_EVENTS, ""]
    assert len(events) == 13 + 3


async def test_without_include_usage_there_is_no_usage_event(
    engine: EngineSimulator, client: aiohttp.ClientSession
) -> None:
    async with engine:
        _, text = await post(client, engine, {**REQUEST, "stream": True})
    assert [len(event["choices"]) for event in events_of(text)] == [1] * 13


async def test_prompt_ids_come_once_and_continuous_usage_always(
    engine: EngineSimulator, client: aiohttp.ClientSession
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with engine:
        _, text = await post(
            client, engine, {**REQUEST, "stream": True, "stream_options": options, "return_token_ids": True}
        )
    events = events_of(text)
    assert [event.get("prompt_token_ids") for event in events] == [PROMPT] + [None] * 13
    assert [event["usage"]["completion_tokens"] for event in events] == [*range(1, 14), 13]


async def test_choices_of_a_stream_come_one_an_event_and_interleaved(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator(tokens_per_chunk=(1, 2)) as engine:
        _, text = await post(
            client, engine, {"token_ids": [1, 2], "sampling_params": {"n": 2, "max_tokens": 4}, "stream": True}
        )
    choices = [event["choices"][0] for event in events_of(text)]
    assert [choice["index"] for choice in choices] == [0, 1, 0, 1, 0, 1]
    assert [len(choice["token_ids"]) for choice in choices] == [1, 1, 2, 2, 1, 1]
    assert [choice["finish_reason"] for choice in choices] == [None] * 4 + ["length"] * 2


async def test_logprobs_have_vllms_shape(engine: EngineSimulator, client: aiohttp.ClientSession) -> None:
    async with engine:
        _, text = await post(client, engine, {**REQUEST, "sampling_params": {"logprobs": 2, "max_tokens": 2}})
    content = json.loads(text)["choices"][0]["logprobs"]["content"]
    assert [list(entry) for entry in content] == [["token_id", "logprob", "rank", "top_logprobs"]] * 2
    assert [entry["token_id"] for entry in content] == [513, 593]
    assert [[top["rank"] for top in entry["top_logprobs"]] for entry in content] == [[1, 2]] * 2


@pytest.mark.parametrize("base", ["header", "body"])
async def test_the_request_id_is_the_headers_else_the_bodys(
    engine: EngineSimulator, client: aiohttp.ClientSession, base: str
) -> None:
    headers = {"X-Request-Id": "from-header"} if base == "header" else {}
    async with engine:
        _, text = await post(client, engine, {**REQUEST, "request_id": "from-body"}, headers)
    assert json.loads(text)["request_id"] == f"generate-tokens-from-{base}"


async def test_without_max_tokens_the_context_is_the_limit(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator(max_model_len=50) as engine:
        _, text = await post(client, engine, {"token_ids": [1] * 20, "sampling_params": {}})
    choice = json.loads(text)["choices"][0]
    assert (len(choice["token_ids"]), choice["finish_reason"]) == (30, "length")


async def test_stop_ids_and_stop_strings_end_with_their_reason(
    engine: EngineSimulator, client: aiohttp.ClientSession
) -> None:
    async with engine:
        _, by_id = await post(client, engine, {**REQUEST, "sampling_params": {"stop_token_ids": [605]}})
        _, by_text = await post(client, engine, {**REQUEST, "sampling_params": {"stop": ["tiny"]}})
        fox = {"token_ids": [514, 609, 411, 759, 964, 621, 87], "sampling_params": {}}
        _, other_eos = await post(client, engine, fox)
    choice = json.loads(by_id)["choices"][0]
    assert (choice["stop_reason"], choice["token_ids"]) == (605, [513, 593, 546, 0, 605])
    assert json.loads(by_text)["choices"][0]["stop_reason"] == "tiny"
    assert json.loads(other_eos)["choices"][0]["stop_reason"] == 1015


async def test_a_tokens_only_engine_reports_eos_as_an_id_and_refuses_stop_strings(
    model: ModelFolder, answers: ScriptedAnswers, client: aiohttp.ClientSession
) -> None:
    async with EngineSimulator(model=model, script=answers, is_tokens_only=True) as engine:
        _, text = await post(client, engine, REQUEST)
        status, refusal = await post(client, engine, {**REQUEST, "sampling_params": {"stop": ["x"]}})
    assert json.loads(text)["choices"][0]["stop_reason"] == 1017
    assert (status, json.loads(refusal)["error"]["type"]) == (400, "BadRequestError")


@pytest.mark.parametrize(
    ("body", "status", "error_type", "param"),
    [
        (b"{", 400, "Bad Request", "body.0"),
        (b"[]", 400, "Bad Request", "body"),
        ({"sampling_params": {}}, 400, "Bad Request", "body.token_ids"),
        ({"token_ids": [], "sampling_params": {}}, 400, "Bad Request", "body.token_ids"),
        ({"token_ids": [1]}, 400, "Bad Request", "body.sampling_params"),
        ({"token_ids": [1], "sampling_params": {"n": "two"}}, 400, "Bad Request", "body.sampling_params.n"),
        ({"token_ids": [1024], "sampling_params": {}}, 400, "BadRequestError", "token_ids"),
        ({"token_ids": [-1], "sampling_params": {}}, 400, "BadRequestError", "token_ids"),
        ({"token_ids": [1] * 2048, "sampling_params": {}}, 400, "BadRequestError", "input_tokens"),
        ({"token_ids": [1], "sampling_params": {}, "model": "other"}, 404, "NotFoundError", "model"),
        ({"token_ids": [1], "sampling_params": {"n": 300}}, 400, "BadRequestError", None),
    ],
)
async def test_bad_requests_get_vllms_errors(
    *,
    engine: EngineSimulator,
    client: aiohttp.ClientSession,
    body: object,
    status: int,
    error_type: str,
    param: str | None,
) -> None:
    async with engine:
        answered, text = await post(client, engine, body)
    error = json.loads(text)["error"]
    assert (answered, error["code"], error["type"], error["param"]) == (status, status, error_type, param)
    assert engine.stats.num_generation_tokens == 0


async def test_in_a_stream_the_input_processors_errors_are_events(
    engine: EngineSimulator, client: aiohttp.ClientSession
) -> None:
    async with engine:
        status, text = await post(client, engine, {"token_ids": [1024], "sampling_params": {}, "stream": True})
    assert status == 200
    assert text == (
        'data: {"error": {"message": "Token id 1024 is out of vocabulary", "type": "BadRequestError", '
        '"param": "token_ids", "code": 400}}\n\ndata: [DONE]\n\n'
    )


async def test_wrong_paths_methods_and_content_types(engine: EngineSimulator, client: aiohttp.ClientSession) -> None:
    async with engine:
        async with client.get(engine.url + "/nope") as response:
            assert (response.status, await response.json()) == (404, {"detail": "Not Found"})
        async with client.get(engine.url + "/inference/v1/generate") as response:
            assert (response.status, await response.json()) == (405, {"detail": "Method Not Allowed"})
        status, _ = await post(client, engine, REQUEST, {"Content-Type": "text/plain"})
        assert status == 400


async def test_without_scale_out_the_token_endpoint_is_forbidden(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator(is_scale_out=False) as engine:
        status, text = await post(client, engine, REQUEST)
    assert (status, json.loads(text)["error"]["type"]) == (403, "PermissionDeniedError")
