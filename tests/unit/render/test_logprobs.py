"""Logprobs in OpenAI form; the sidecar is a real HTTP peer that decodes byte-level tokens as vLLM's does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from motor.coordinator.domain.errors import DerenderFault
from motor.coordinator.domain.generation import GenerateChoice
from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.domain.tokens import SemanticTokenIds
from motor.coordinator.render.logprobs import LogprobsOptions, LogprobsStream, num_engine_logprobs
from motor.coordinator.render.models import TokenizedRequest
from motor.coordinator.render.vllm_render_client import VllmRenderClient
from motor.coordinator.transport.http_pool import HttpPool
from motor.simulator.server import SimulatorServer

TOKENS = {1: b"Hi", 2: b" there", 3: b"\xe2\x82", 4: b"\xac", 5: b"!"}
"""3 and 4 are the halves of a euro sign."""


def decode(ids: list[int]) -> str:
    """Return what the last id adds to the text, as vLLM shows it: nothing for an unfinished character."""
    before, after = (b"".join(TOKENS[one] for one in part).decode(errors="replace") for part in (ids[:-1], ids))
    return "" if after.endswith("�") else after[len(before.rstrip("�")) :]


@dataclass
class FakeSidecar:
    """Decodes logprobs of complete chat answers; remembers the ids of each call."""

    server: SimulatorServer
    has_logprobs: bool = True
    calls: list[list[int]] = field(default_factory=list)

    async def derender(self, request: web.Request) -> web.Response:
        choice = (await request.json())["generate_response"]["choices"][0]
        ids = choice["token_ids"]
        self.calls.append(ids)
        content = [
            {
                "token": decode(ids[: position + 1]),
                "logprob": entry["logprob"],
                "bytes": list(decode(ids[: position + 1]).encode()),
                "top_logprobs": [
                    {"token": decode([*ids[:position], top["token_id"]]), "logprob": top["logprob"], "bytes": []}
                    for top in entry["top_logprobs"]
                ],
            }
            for position, entry in enumerate(choice["logprobs"]["content"])
        ]
        return web.json_response({"choices": [{"logprobs": {"content": content} if self.has_logprobs else None}]})


@asynccontextmanager
async def sidecar() -> AsyncIterator[tuple[FakeSidecar, VllmRenderClient]]:
    server = SimulatorServer("127.0.0.1", 0)
    fake = FakeSidecar(server)
    server.add("POST", "/v1/chat/completions/derender", fake.derender)
    pool = HttpPool(connect_seconds=2.0)
    async with server:
        try:
            yield fake, VllmRenderClient(pool, [server.url], 5.0)
        finally:
            await pool.close()


def entry(token_id: int, *tops: tuple[int, int]) -> dict[str, Any]:
    """Return one position in generate's shape; `tops` are ids with their ranks, the sampled one among them."""
    shown = [{"token_id": top, "logprob": -float(rank), "rank": rank} for top, rank in tops]
    return {"token_id": token_id, "logprob": -0.5, "rank": 1, "top_logprobs": shown}


def chunk(*entries: dict[str, Any]) -> GenerateChoice:
    return GenerateChoice(index=0, token_ids=[one["token_id"] for one in entries], logprobs={"content": list(entries)})


def stream_of(api: Api, client: VllmRenderClient, **fields: Any) -> LogprobsStream:
    request = ClientRequest(request_id="r", peer_id="r", api=api, body=b"", fields=fields)
    prompt = TokenizedRequest(0, SemanticTokenIds((7, 8)), sampling_params={}, metadata={})
    options = LogprobsOptions.of(request)
    assert options is not None
    return LogprobsStream(request, prompt, options, client, "tiny")


@pytest.mark.parametrize(
    ("api", "fields", "expected"),
    [
        (Api.CHAT, {"logprobs": True}, LogprobsOptions(0, False)),
        (Api.CHAT, {"logprobs": True, "top_logprobs": 5}, LogprobsOptions(5, False)),
        (Api.CHAT, {"logprobs": True, "return_tokens_as_token_ids": True}, LogprobsOptions(0, True)),
        (Api.CHAT, {"logprobs": False, "top_logprobs": 5}, None),
        (Api.CHAT, {}, None),
        (Api.COMPLETIONS, {"logprobs": 0}, LogprobsOptions(0, False)),
        (Api.COMPLETIONS, {"logprobs": 5}, LogprobsOptions(5, False)),
        (Api.COMPLETIONS, {"logprobs": None}, None),
    ],
)
def test_what_is_wanted(api: Api, fields: dict[str, Any], expected: LogprobsOptions | None) -> None:
    client = ClientRequest(request_id="r", peer_id="r", api=api, body=b"", fields=fields)
    assert LogprobsOptions.of(client) == expected


@pytest.mark.parametrize(
    ("api", "num_top", "num_rendered", "expected"),
    [
        (Api.COMPLETIONS, 5, 5, 6),  # native shows the sampled token beside the five best
        (Api.COMPLETIONS, 0, 0, 0),
        (Api.COMPLETIONS, 20, 20, 20),  # engines refuse 21
        (Api.COMPLETIONS, -1, -1, -1),
        (Api.CHAT, 5, 5, 5),
    ],
)
def test_how_many_engines_are_asked_for(api: Api, num_top: int, num_rendered: int, expected: int) -> None:
    assert num_engine_logprobs(LogprobsOptions(num_top, False), api, num_rendered) == expected


async def test_a_character_split_over_chunks_is_decoded_with_its_beginning() -> None:
    async with sidecar() as (fake, client):
        stream = stream_of(Api.CHAT, client, logprobs=True)
        tokens = []
        for ids in ([1, 3], [4], [5]):
            resolved = await stream.resolve(chunk(*(entry(one) for one in ids)))
            assert resolved is not None
            tokens += [one["token"] for one in resolved["content"]]
        assert tokens == ["Hi", "", "€", "!"]
        assert fake.calls == [[1, 3], [1, 3, 4], [1, 3, 4, 5]], "earlier ids go along, four at most"
        await stream.resolve(chunk(entry(2)))
        assert fake.calls[-1] == [1, 3, 4, 5, 2]
        await stream.resolve(chunk(entry(2)))
        assert fake.calls[-1] == [3, 4, 5, 2, 2]


async def test_an_attempt_that_showed_nothing_leaves_no_context() -> None:
    async with sidecar() as (fake, client):
        stream = stream_of(Api.COMPLETIONS, client, logprobs=1)
        await stream.resolve(chunk(entry(1)))
        stream.begin_attempt()
        await stream.resolve(chunk(entry(2)))
        stream.take_back_attempt()
        resolved = await stream.resolve(chunk(entry(5)))
        assert resolved is not None
        assert resolved["text_offset"] == [2], "the text of token 2 was taken back"
        assert fake.calls[-1] == [1, 5]


async def test_chat_shows_as_many_alternatives_as_asked() -> None:
    async with sidecar() as (_, client):
        position = entry(1, (1, 1), (2, 2), (5, 3))
        for asked, shown in ((0, []), (1, ["Hi"]), (2, ["Hi", " there"]), (-1, ["Hi", " there", "!"])):
            resolved = await stream_of(Api.CHAT, client, logprobs=True, top_logprobs=asked).resolve(chunk(position))
            assert resolved is not None
            assert [top["token"] for top in resolved["content"][0]["top_logprobs"]] == shown


async def test_completions_show_the_best_and_the_sampled_one() -> None:
    async with sidecar() as (_, client):
        stream = stream_of(Api.COMPLETIONS, client, logprobs=1)
        resolved = await stream.resolve(chunk(entry(1, (1, 1), (2, 2)), entry(2, (2, 3), (5, 1), (1, 2))))
        assert resolved == {
            "text_offset": [0, 2],
            "token_logprobs": [-0.5, -0.5],
            "tokens": ["Hi", " there"],
            "top_logprobs": [{"Hi": -1.0}, {" there": -3.0, "!": -1.0}],
        }


async def test_offsets_go_on_over_chunks() -> None:
    async with sidecar() as (_, client):
        stream = stream_of(Api.COMPLETIONS, client, logprobs=0)
        offsets = []
        for ids in ([1, 2], [3], [4, 5]):
            resolved = await stream.resolve(chunk(*(entry(one) for one in ids)))
            assert resolved is not None
            offsets += resolved["text_offset"]
        assert offsets == [0, 2, 8, 8, 9]


async def test_tokens_named_by_ids() -> None:
    async with sidecar() as (_, client):
        stream = stream_of(Api.CHAT, client, logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True)
        resolved = await stream.resolve(chunk(entry(2, (1, 1), (2, 2))))
        assert resolved is not None
        (position,) = resolved["content"]
        assert position["token"] == "token_id:2"
        assert position["bytes"] == list(b" there"), "native leaves these"
        assert position["top_logprobs"] == [{"token": "token_id:1", "logprob": -1.0, "bytes": list(b"token_id:1")}]


async def test_nothing_to_decode_is_no_call() -> None:
    async with sidecar() as (fake, client):
        stream = stream_of(Api.CHAT, client, logprobs=True)
        assert await stream.resolve(GenerateChoice(index=0, token_ids=[1])) is None
        assert await stream.resolve(chunk()) == {"content": []}
        assert fake.calls == []


async def test_an_answer_without_logprobs_is_the_sidecars_fault() -> None:
    async with sidecar() as (fake, client):
        fake.has_logprobs = False
        with pytest.raises(DerenderFault, match="no logprobs"):
            await stream_of(Api.CHAT, client, logprobs=True).resolve(chunk(entry(1)))
