"""A client that reads nothing stops the engine, costs bounded memory, disturbs nobody, and is closed in the end."""

import json
from typing import Any

import pytest

from tests.deployment import CHAT, COMPLETIONS, QUIET, Deployment, deployment, eventually, user
from tests.raw_client import RawClient, raw_client

NUM_TOKENS = 12_000_000
LARGE = {"max_model_len": 16_000_000}
# Large chunks, so that the kernel's buffers between engine, Coordinator and client are soon full.
ENGINE = {**LARGE, "tokens_per_chunk": (1000,)}
ENDLESS = {"model": "tiny", "prompt": "on and on", "max_tokens": NUM_TOKENS, "stream": True}
HELLO = user("Say hello.", **QUIET)
TINY_BUFFER_BYTES = 4096
CHAINS = pytest.mark.parametrize("has_render", [True, False], ids=["token", "native"])


def ask(client: RawClient, body: dict[str, Any] = ENDLESS) -> None:
    """Send a request whose answer is not read."""
    client.post(COMPLETIONS, json.dumps(body).encode())


async def until_stalled(d: Deployment) -> int:
    """Serve others until the engine makes no more tokens for the stalled client; return how many it has made.

    Each round takes some time by itself, in which an engine that isn't stopped would make thousands.
    """
    num_quiet, num_made = 0, d.engines[0].stats.num_generation_tokens
    while num_quiet < 5:
        answer = await d.post(CHAT, HELLO)
        assert answer.text() == "Hello there! I am a tiny test model."
        num_before, num_made = num_made, d.engines[0].stats.num_generation_tokens
        num_quiet = num_quiet + 1 if num_made - num_before < 1000 else 0
        assert num_made < NUM_TOKENS / 2, "the engine is not stopped"
    return num_made


async def test_the_engine_stops_and_others_go_on() -> None:
    async with deployment(engine=ENGINE, render=LARGE) as d:
        async with raw_client(d.url, TINY_BUFFER_BYTES) as client:
            ask(client)
            await until_stalled(d)
            assert d.engines[0].stats.num_running == 1
        await d.check_nothing_left()
        assert d.engines[0].stats.num_disconnected == 1


async def test_a_client_that_reads_again_gets_everything() -> None:
    body = {**ENDLESS, "max_tokens": 200_000, "stream_options": {"include_usage": True}}
    async with deployment(engine=ENGINE, render=LARGE) as d, raw_client(d.url, TINY_BUFFER_BYTES) as client:
        ask(client, body)
        status, _ = await client.answer_head()
        assert status == 200
        await eventually(lambda: d.engines[0].stats.num_generation_tokens > 10_000, "the engine is under way")
        received = b""
        while b"[DONE]" not in received[-100:]:
            packet = await client.reader.read(2**16)
            assert packet
            received += packet
        assert b'"completion_tokens":200000' in received
        await d.check_nothing_left()


@CHAINS
async def test_a_stalled_client_is_closed(has_render: bool) -> None:
    settings: dict[str, Any] = {"streaming": {"client_stall_seconds": 0.3}}
    async with deployment(engine=ENGINE, render=LARGE, has_render=has_render, **settings) as d:
        async with raw_client(d.url, TINY_BUFFER_BYTES) as client:
            ask(client)
            await eventually(lambda: d.engines[0].stats.num_disconnected == 1, "the engine's request is cancelled")
            await d.check_nothing_left()
            assert b"motor_client_disconnects_total 1.0" in d.built.metrics.render()[0]
            # What was buffered for it is dropped with the connection; a close would wait for it to be read.
            with pytest.raises(ConnectionResetError):
                await client.reader.read(-1)
        assert (await d.post(CHAT, HELLO)).status == 200
        await d.check_nothing_left()


async def test_a_waiting_client_is_not_a_stalled_one() -> None:
    """An engine that takes its time says nothing about the client."""
    settings: dict[str, Any] = {"streaming": {"client_stall_seconds": 0.1}}
    engine = {"first_token_delay_seconds": 0.4, "tokens_per_second": 40}
    async with deployment(engine=engine, **settings) as d:
        answer = await d.post(CHAT, {**HELLO, "stream": True})
        assert answer.text() == "Hello there! I am a tiny test model."
        await d.check_nothing_left()
