"""The main job with real vLLM: through the Coordinator a client gets what native vLLM would give it."""

from typing import Any

import aiohttp
import pytest

from tests.deployment import CHAT, QUIET, user
from tests.event_reader import open_stream
from tests.real.coordinator import CASES, ask, coordinator, native
from tests.real.stack import RealStack

STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
LONG = user("Tell me a long story.", ignore_eos=True, max_tokens=1500, **QUIET)


@STREAMS
@pytest.mark.parametrize("name", CASES)
async def test_answers_are_those_of_native_vllm(real_stack: RealStack, name: str, stream: bool) -> None:
    path, body = CASES[name]
    async with coordinator(real_stack, ("union", real_stack.engine)) as d:
        got = await ask(d, path, body, stream=stream)
        assert got == await ask(native(d, real_stack), path, body, stream=stream)
    assert got["content"] or got["calls"]


@STREAMS
async def test_an_engine_without_tokenizer_gives_the_same(real_stack: RealStack, stream: bool) -> None:
    path, body = CASES["reasoning, then a tool"]
    async with coordinator(real_stack, ("union", real_stack.tokens_engine)) as d:
        got = await ask(d, path, body, stream=stream)
        assert got == await ask(native(d, real_stack), path, body, stream=stream)


@STREAMS
@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": [10_000_000]},
        {"prompt": [-1]},
        {"prompt": "Emoji test:", "kv_transfer_params": {"do_remote_prefill": True}},
        {"prompt": "Emoji test:", "kv_transfer_params": {"do_remote_prefill": True, "remote_block_ids": [[1]]}},
        {"prompt": "Emoji test:", "stop_token_ids": [10_000_000]},
        {"prompt": "Emoji test:", "logit_bias": {"10000000": 5}},
    ],
    ids=["unknown id", "negative id", "transfer without source", "transfer", "unknown stop id", "unknown biased id"],
)
async def test_no_request_kills_an_engine_without_tokenizer(
    real_stack: RealStack, fields: dict[str, Any], stream: bool
) -> None:
    """Sent to such an engine as they are, ids beyond the vocabulary end its process."""
    body = {"model": "tiny", "max_tokens": 10, "temperature": 0, "stream": stream, **fields}
    path, harmless = CASES["plain"]
    async with coordinator(real_stack, ("union", real_stack.tokens_engine)) as d:
        answer = await d.post("/v1/completions", body)
        assert answer.status in (200, 400), answer.body
        assert (await ask(d, path, harmless, stream=False))["content"]
        await real_stack.wait_until_idle(real_stack.tokens_engine)
        async with aiohttp.ClientSession() as http, http.get(f"{real_stack.tokens_engine}/health") as health:
            assert health.status == 200


@pytest.mark.parametrize("engine", ["engine", "tokens_engine"])
async def test_a_client_that_leaves_ends_the_generation(real_stack: RealStack, engine: str) -> None:
    url = getattr(real_stack, engine)
    before = await real_stack.metric(url, "generation_tokens_total")
    async with coordinator(real_stack, ("union", url)) as d:
        async with open_stream(d, CHAT, LONG) as events:
            await events.take(5)
            assert await real_stack.metric(url, "num_requests_running") == 1
        await real_stack.wait_until_idle(url, deadline_seconds=2)
    generated = await real_stack.metric(url, "generation_tokens_total") - before
    assert generated < LONG["max_tokens"] / 2
