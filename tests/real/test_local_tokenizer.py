"""The local tokenizer against the real Render: the same ids for every shape of request."""

from typing import Any

import aiohttp
import msgspec
import pytest

from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.render.local_tokenizer import LocalTokenizer
from tests.deployment import MODEL
from tests.message_shapes import CHATS, COMPLETIONS, VLLM_CHATS
from tests.real.stack import RealStack

SHAPES = [
    *(pytest.param(Api.CHAT, body, id=name) for name, body in {**CHATS, **VLLM_CHATS}.items()),
    *(pytest.param(Api.COMPLETIONS, body, id=f"completion of {name}") for name, body in COMPLETIONS.items()),
]


@pytest.mark.parametrize(("api", "fields"), SHAPES)
async def test_ids_are_renders(real_stack: RealStack, api: Api, fields: dict[str, Any]) -> None:
    body = {"model": "tiny", **fields}
    async with (
        aiohttp.ClientSession() as http,
        http.post(real_stack.render + api.path + "/render", json=body) as response,
    ):
        rendered = await response.json()
        assert response.status == 200, rendered
    prompts = [rendered] if api is Api.CHAT else rendered
    client = ClientRequest("r", "r", api, msgspec.json.encode(body), body)
    told = await LocalTokenizer(MODEL).prompts_of(client)
    assert told.prompts == tuple(tuple(prompt["token_ids"]) for prompt in prompts)
