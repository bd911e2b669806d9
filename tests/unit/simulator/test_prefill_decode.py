"""Prefill and decode on simulated engines, with KV blocks that must be given back."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from motor.simulator import EngineSimulator
from motor.simulator.server import SimulatorServer

PROMPT = list(range(1, 164))


@pytest.fixture
async def prefill() -> AsyncIterator[EngineSimulator]:
    async with EngineSimulator(block_size=32) as engine:
        yield engine


@pytest.fixture
async def decode() -> AsyncIterator[EngineSimulator]:
    async with EngineSimulator(block_size=32) as engine:
        yield engine


async def ask(
    client: aiohttp.ClientSession, engine: EngineSimulator, parameters: dict[str, Any] | None, **fields: Any
) -> tuple[int, dict[str, Any]]:
    body = {
        "request_id": "r1",
        "token_ids": PROMPT,
        "sampling_params": {"max_tokens": 4},
        "kv_transfer_params": parameters,
        **fields,
    }
    async with client.post(engine.url + "/inference/v1/generate", json=body) as response:
        return response.status, await response.json()


async def ask_prefill(client: aiohttp.ClientSession, engine: EngineSimulator) -> dict[str, Any]:
    status, answer = await ask(client, engine, {"do_remote_decode": True}, sampling_params={"max_tokens": 1})
    assert status == 200
    parameters: dict[str, Any] = answer["kv_transfer_params"]
    return parameters


async def test_a_prefill_answers_as_vllms_nixl_connector_and_a_decode_takes_its_blocks(
    client: aiohttp.ClientSession, prefill: EngineSimulator, decode: EngineSimulator
) -> None:
    parameters = await ask_prefill(client, prefill)
    remote_id = parameters.pop("remote_request_id")
    assert parameters == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [[1, 2, 3, 4, 5, 6]],
        "remote_engine_id": prefill.core.kv_blocks.engine_id,
        "remote_host": "127.0.0.1",
        "remote_port": prefill.port,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": 163,
        "remote_blocks_expiry_time": None,
        "transfer_mode": "pull",
        "remote_prefill_cached_tokens": 0,
    }
    assert prefill.num_kv_blocks_held == 6
    status, answer = await ask(client, decode, {**parameters, "remote_request_id": remote_id})
    assert (status, answer["kv_transfer_params"], len(answer["choices"][0]["token_ids"])) == (200, None, 4)
    assert (prefill.num_kv_blocks_held, prefill.core.kv_blocks.num_taken) == (0, 1)
    assert (prefill.stats.legs, decode.stats.legs) == ({"prefill": 1}, {"decode": 1})


async def test_parameters_in_extra_args_count_too(client: aiohttp.ClientSession, prefill: EngineSimulator) -> None:
    sampling = {"max_tokens": 1, "extra_args": {"kv_transfer_params": {"do_remote_decode": True}}}
    _, answer = await ask(client, prefill, None, sampling_params=sampling)
    assert answer["kv_transfer_params"]["remote_num_tokens"] == 163


@pytest.mark.parametrize("case", ["no remote fields", "used twice", "too few blocks"])
async def test_unusable_parameters_kill_the_decode_engine(
    client: aiohttp.ClientSession, prefill: EngineSimulator, decode: EngineSimulator, case: str
) -> None:
    parameters = await ask_prefill(client, prefill)
    fields: dict[str, Any] = {}
    if case == "no remote fields":
        parameters = {"do_remote_prefill": True}
    elif case == "used twice":
        assert (await ask(client, decode, parameters))[0] == 200
    else:
        fields["token_ids"] = PROMPT + [1] * 50
    with pytest.raises((aiohttp.ClientError, ConnectionError)):
        await ask(client, decode, parameters, **fields)
    assert not decode.is_listening
    await decode.restart()
    assert (await ask(client, decode, None))[0] == 200


@pytest.mark.parametrize("case", ["other engine", "prefill is down", "fault"])
async def test_a_failed_kv_load_is_an_error_and_the_engine_lives(
    client: aiohttp.ClientSession, prefill: EngineSimulator, decode: EngineSimulator, case: str
) -> None:
    parameters = await ask_prefill(client, prefill)
    if case == "other engine":
        parameters["remote_engine_id"] = "another"
    elif case == "prefill is down":
        await prefill.crash()
    else:
        decode.faults.set("kv_load_failure", times=1)
    status, answer = await ask(client, decode, parameters)
    assert (status, answer["error"]["message"]) == (500, "Internal server error")
    assert (decode.is_listening, decode.stats.num_running) == (True, 0)


async def test_blocks_that_no_decode_takes_expire(client: aiohttp.ClientSession) -> None:
    async with EngineSimulator(kv_lease_seconds=0) as prefill:
        await ask_prefill(client, prefill)
        assert prefill.num_kv_blocks_held == 0


@pytest.mark.parametrize("status", [200, 502])
async def test_a_trigger_decode_calls_the_metaserver_and_waits(
    client: aiohttp.ClientSession, decode: EngineSimulator, status: int
) -> None:
    received: list[dict[str, Any]] = []

    async def metaserver(request: web.Request) -> web.Response:
        received.append(await request.json())
        assert decode.stats.num_generation_tokens == 0
        return web.json_response({}, status=status)

    server = SimulatorServer("127.0.0.1", 0)
    server.add("POST", "/v1/metaserver", metaserver)
    async with server:
        parameters = {
            "do_remote_decode": False,
            "do_remote_prefill": True,
            "metaserver": server.url + "/v1/metaserver",
        }
        answered, _ = await ask(client, decode, parameters)
    assert answered == (200 if status == 200 else 500)
    assert received == [
        {
            "request_id": "generate-tokens-r1",
            "do_remote_decode": True,
            "do_remote_prefill": False,
            "remote_block_ids": [0, 1, 2, 3, 4, 5],
            "remote_engine_id": decode.core.kv_blocks.engine_id,
            "remote_host": "127.0.0.1",
            "remote_port": decode.port,
        }
    ]


async def test_a_triggered_prefill_pushes_and_holds_nothing(
    client: aiohttp.ClientSession, prefill: EngineSimulator
) -> None:
    parameters = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": "decode-engine"}
    status, answer = await ask(client, prefill, parameters)
    assert (status, answer["kv_transfer_params"], prefill.num_kv_blocks_held) == (200, None, 0)
