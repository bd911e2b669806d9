"""`motor simulate` as a process: one line when ready, a clean stop on a signal."""

import asyncio
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import aiohttp
import pytest

TINY_MODEL = Path(__file__).parents[3] / "models" / "tiny-qwen3"
MOTOR = (sys.executable, "-c", "from motor.cli.main import app; app()", "simulate")


async def start(*arguments: str) -> Process:
    return await asyncio.create_subprocess_exec(*MOTOR, *arguments, stdout=PIPE, stderr=PIPE)


async def address_of(process: Process, kind: str) -> str:
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode().strip()
    name, _, address = line.partition(": ")
    assert name == f"motor simulate {kind}"
    return address


@pytest.mark.parametrize(
    ("kind", "number"), [("engine", signal.SIGTERM), ("render", signal.SIGINT)], ids=["engine", "render"]
)
async def test_it_tells_its_address_serves_and_stops(
    client: aiohttp.ClientSession, kind: str, number: signal.Signals
) -> None:
    process = await start(kind, "--port", "0", "--model", str(TINY_MODEL), "--served-model-name", "tiny")
    address = await address_of(process, kind)
    async with client.get(address + "/v1/models") as response:
        card = (await response.json())["data"][0]
    assert (card["id"], card["max_model_len"]) == ("tiny", 8192)
    process.send_signal(number)
    rest, errors = await process.communicate()
    assert (process.returncode, rest, errors) == (0, b"", b"")


async def test_answers_rates_and_faults_are_flags(client: aiohttp.ClientSession) -> None:
    process = await start(
        *("engine", "--port", "0", "--model", str(TINY_MODEL), "--answers", str(TINY_MODEL / "expected.json")),
        *("--tokens-per-chunk", "4,9", "--fault", "status=503,times=1"),
    )
    address = await address_of(process, "engine")
    body = {"messages": [{"role": "user", "content": "Say hello."}], "stream": True}
    async with client.post(address + "/v1/chat/completions", json=body) as response:
        assert response.status == 503
    async with client.post(address + "/v1/chat/completions", json=body) as response:
        text = await response.text()
    assert text.count("data: ") == 1 + 2 + 1
    process.terminate()
    assert await process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["engine", "--port", "0", "--fault", "explode"], "explode"),
        (["engine", "--port", "0", "--answers", "x.json"], "--model"),
        (["engine", "--port", "0", "--tokens-per-chunk", "0"], "tokens_per_chunk"),
        (["render", "--port", "0", "--model", "/does/not/exist"], "--model"),
    ],
)
async def test_wrong_flags_are_explained(arguments: list[str], message: str) -> None:
    process = await start(*arguments)
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert message in errors.decode()
