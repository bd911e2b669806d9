"""Handoff between two real vLLM processes: decode takes the KV cache of the prompt from prefill, and nothing stays."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from motor.launch.ports import free_ports
from tests.deployment import CHAT, COMPLETIONS, QUIET, Deployment, user
from tests.event_reader import open_stream
from tests.real.coordinator import CASES, ask, coordinator
from tests.real.stack import LEASE_SECONDS, PrefillDecode, RealStack

STREAMS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
NAMES = ("plain", "emoji", "reasoning", "parallel tools", "reasoning, then a tool", "long", "completion")
ENDLESS = user("Tell me a long story.", ignore_eos=True, max_tokens=1500, **QUIET)
SOURCES = ("external_kv_transfer", "local_compute", "local_cache_hit")
FREED_SECONDS = 2.0
"""Far less than a lease."""


def handoff(stack: RealStack, pair: PrefillDecode, *decodes: str) -> Any:
    """Return a Coordinator with the pair; its first choice for decode are `decodes`."""
    roles = [("prefill", pair.prefill), *(("decode", url) for url in (*decodes, pair.decode))]
    return coordinator(stack, *roles, deploy_mode="handoff")


async def prompt_tokens(stack: RealStack, url: str) -> dict[str, int]:
    """Return how many prompt tokens an engine has had so far, by where their KV came from.

    Without the single tokens that a Coordinator asks engines for at its start: every request here is one, but those
    that took KV over.
    """
    name = "prompt_tokens_by_source_total"
    counts = {source: int(await stack.metric(url, name, source=source)) for source in SOURCES}
    num_requests = await stack.metric(url, "request_success_total")
    num_transfers = await stack.metric(url, "nixl_bytes_transferred_count")
    counts["local_compute"] -= int(num_requests - num_transfers)
    return counts


async def check_both_free(stack: RealStack, pair: PrefillDecode) -> None:
    """Nothing runs and no block is held, neither for a request nor for a decode that may come."""
    await stack.wait_until_idle(pair.prefill, FREED_SECONDS)
    await stack.wait_until_idle(pair.decode, FREED_SECONDS)


def fresh_chat(words: str, **fields: Any) -> dict[str, Any]:
    """Return a chat whose prompt no engine has seen: no block of it is cached."""
    body = user("What is the capital of France?", **QUIET, **fields)
    body["messages"].insert(0, {"role": "system", "content": f"{words} {time.time_ns()} {words * 5}"})
    return body


@STREAMS
@pytest.mark.parametrize("name", NAMES)
async def test_answers_are_those_of_union(
    real_stack: RealStack, pd_stack: PrefillDecode, name: str, stream: bool
) -> None:
    path, body = CASES[name]
    async with coordinator(real_stack, ("union", real_stack.engine)) as d:
        expected = await ask(d, path, body, stream=stream)
    async with handoff(real_stack, pd_stack) as d:
        assert await ask(d, path, body, stream=stream) == expected
        await check_both_free(real_stack, pd_stack)


@STREAMS
async def test_decode_computes_nothing_of_the_prompt(
    real_stack: RealStack,
    pd_stack: PrefillDecode,
    stream: bool,
    record_testsuite_property: Callable[[str, object], None],
) -> None:
    before = await prompt_tokens(real_stack, pd_stack.decode)
    num_bytes = await real_stack.metric(pd_stack.decode, "nixl_bytes_transferred_sum")
    async with handoff(real_stack, pd_stack) as d:
        got = await ask(d, CHAT, fresh_chat("quiet south winter"), stream=stream)
        await check_both_free(real_stack, pd_stack)
    after = await prompt_tokens(real_stack, pd_stack.decode)
    num_bytes = await real_stack.metric(pd_stack.decode, "nixl_bytes_transferred_sum") - num_bytes
    grown = {source: after[source] - before[source] for source in SOURCES}
    assert grown == {"external_kv_transfer": got["usage"]["prompt_tokens"], "local_compute": 0, "local_cache_hit": 0}
    assert num_bytes > 0
    record_testsuite_property(f"kv_bytes of {got['usage']['prompt_tokens']} tokens", int(num_bytes))


async def test_prompt_lists_keep_their_order(real_stack: RealStack, pd_stack: PrefillDecode) -> None:
    body = {"model": "tiny", "prompt": ["The quick brown fox", "def add(a, b):"], "max_tokens": 40, "temperature": 0}
    async with handoff(real_stack, pd_stack) as d:
        answer = await d.post(COMPLETIONS, body)
        assert [answer.text(0), answer.text(1)] == [" jumps over the lazy dog.", "\n    return a + b"]
        await check_both_free(real_stack, pd_stack)


@STREAMS
async def test_blocks_are_freed_at_once_when_decode_refuses(
    real_stack: RealStack, pd_stack: PrefillDecode, stream: bool
) -> None:
    """The first decode instance is dead; another one frees what was prefilled for it, then the request is repeated."""
    (closed_port,) = free_ports(1)
    async with handoff(real_stack, pd_stack, f"http://127.0.0.1:{closed_port}") as d:
        got = await ask(d, CHAT, fresh_chat("grass paper horse"), stream=stream)
        assert got["content"] == "The capital of France is Paris."
        assert b'motor_attempt_plans_total{plan="restart"} 1.0' in (await d.get(f"{d.management_url}/metrics")).body
        await check_both_free(real_stack, pd_stack)


async def leave_in_mid_answer(d: Deployment, body: dict[str, Any]) -> None:
    async with open_stream(d, CHAT, body) as events:
        await events.take(3)


async def test_a_client_that_leaves_during_decode_frees_both(real_stack: RealStack, pd_stack: PrefillDecode) -> None:
    async with handoff(real_stack, pd_stack) as d:
        await leave_in_mid_answer(d, ENDLESS)
        await check_both_free(real_stack, pd_stack)


async def test_cancelled_requests_do_not_block_the_next(real_stack: RealStack, pd_stack: PrefillDecode) -> None:
    """Cancelled at every age: before, in and after prefill, and while decode reads or answers.

    A prefill that had just ended when its connection was closed has told nobody where its blocks are: those wait out
    their lease.
    """
    async with handoff(real_stack, pd_stack) as d:
        for number in range(10):
            request = asyncio.create_task(d.post(CHAT, fresh_chat(f"bread {number}", max_tokens=200, ignore_eos=True)))
            await asyncio.wait([request], timeout=0.02 * (number + 1))
            request.cancel()
            await asyncio.wait([request])
        async with asyncio.timeout(5):
            got = await ask(d, CHAT, fresh_chat("music"), stream=False)
        assert got["content"] == "The capital of France is Paris."
        await real_stack.wait_until_idle(pd_stack.decode, FREED_SECONDS)
        await real_stack.wait_until_idle(pd_stack.prefill, LEASE_SECONDS + FREED_SECONDS)
