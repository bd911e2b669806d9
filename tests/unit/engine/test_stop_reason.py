"""What an answer says of its end: in native vLLM's words, whatever the engine tells. Shapes recorded from real vLLM."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from motor.coordinator.engine.token_engine_client import EngineRequest, EngineTimeouts, TokenEngineClient
from motor.coordinator.transport.http_pool import HttpPool
from motor.simulator.server import SimulatorServer

EOS = 1017
OLD_TAIL = '"routed_experts":null,"sampling_mask":null'


def old_choice(last_id: int, finish_reason: str) -> str:
    """Return a choice of vLLM 0.28, which has no stop reason."""
    return f'{{"index":0,"logprobs":null,"finish_reason":"{finish_reason}","token_ids":[310,{last_id}],{OLD_TAIL}}}'


def new_choice(last_id: int, finish_reason: str, stop_reason: str) -> str:
    """Return a choice of vLLM 0.32."""
    head = f'"index":0,"logprobs":null,"finish_reason":"{finish_reason}","stop_reason":{stop_reason}'
    return f'{{{head},"token_ids":[310,{last_id}],"weight_versions":null,{OLD_TAIL}}}'


@asynccontextmanager
async def client_of(choice: str, eos_token_id: int | None) -> AsyncIterator[tuple[TokenEngineClient, str]]:
    async def generate(request: web.Request) -> web.Response:
        body = f'{{"request_id":"r","choices":[{choice}],"usage":null}}'
        if (await request.json())["stream"]:
            return web.Response(text=f"data: {body}\n\ndata: [DONE]\n\n", content_type="text/event-stream")
        return web.Response(text=body, content_type="application/json")

    server = SimulatorServer("127.0.0.1", 0)
    server.add("POST", "/inference/v1/generate", generate)
    pool = HttpPool(connect_seconds=2.0)
    async with server:
        try:
            yield TokenEngineClient(pool, EngineTimeouts(5, 5, 5), eos_token_id), server.url
        finally:
            await pool.close()


@pytest.mark.parametrize(
    ("choice", "eos_token_id", "expected"),
    [
        (old_choice(EOS, "stop"), EOS, None),
        (old_choice(1015, "stop"), EOS, 1015),
        (old_choice(1015, "length"), EOS, None),
        (old_choice(1015, "stop"), None, None),
        (new_choice(EOS, "stop", "null"), EOS, None),
        (new_choice(1015, "stop", "1015"), EOS, 1015),
        (new_choice(1015, "stop", "null"), EOS, None),
        (new_choice(7, "stop", '"END"'), EOS, "END"),
        (new_choice(EOS, "stop", str(EOS)), EOS, None),  # an engine without tokenizer
    ],
)
async def test_the_stop_reason(choice: str, eos_token_id: int | None, expected: Any) -> None:
    async with client_of(choice, eos_token_id) as (client, url):
        answer = await client.generate(url, EngineRequest("r", b'{"stream":false}', 1))
        assert [one.stop_reason for one in answer.choices] == [expected]
        async with client.stream(url, EngineRequest("r", b'{"stream":true}', 1)) as stream:
            assert [one.stop_reason async for chunk in stream.chunks() for one in chunk.choices] == [expected]
