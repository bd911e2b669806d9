"""Killed after every chunk, in prefill and in decode, in every topology: the client can't tell (RFC: 流式 replay)."""

from typing import Any

import pytest

from motor.simulator import FaultKind
from tests.deployment import Deployment, deployment
from tests.relayed import LAYOUTS, REQUESTS, seen_by_client, streamed

RELAY = {"retry_reserve": 10_000, "max_attempts": 8}
NAMES = pytest.mark.parametrize("name", REQUESTS)


async def check_relayed(d: Deployment, name: str, expected: dict[str, Any], what: str) -> int:
    """Ask once more; return how many generate requests it took."""
    before = d.num_generates
    assert seen_by_client(await streamed(d, REQUESTS[name])) == expected, what
    for engine in d.engines:
        engine.faults.clear()
    await d.check_nothing_left()
    return d.num_generates - before


@NAMES
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_decode_killed_after_every_chunk(layout: str, name: str) -> None:
    """Every engine that answers dies once: two kills in one request, the second as far into what the first left."""
    async with deployment(relay=RELAY, **LAYOUTS[layout]) as d:
        expected = seen_by_client(await streamed(d, REQUESTS[name]))
        num_legs = d.num_generates
        for after in range(expected["usage"]["completion_tokens"]):
            for engine in d.engines:
                engine.faults.set(FaultKind.DIE, leg="decode", endpoint="generate", after=after, times=1)
            num_generates = await check_relayed(d, name, expected, f"killed after {after}")
            assert num_generates > num_legs


@NAMES
@pytest.mark.parametrize("layout", ["handoff", "trigger"])
async def test_prefill_killed_between_kills_of_decode(layout: str, name: str) -> None:
    """One prefill dies, of the first attempt or of the one that goes on after decode's death."""
    async with deployment(relay=RELAY, **LAYOUTS[layout]) as d:
        expected = seen_by_client(await streamed(d, REQUESTS[name]))
        for after in range(0, expected["usage"]["completion_tokens"], 3):
            for victim in d.engines[:2]:
                prefill_dies = victim.faults.set(FaultKind.REFUSE, leg="prefill", endpoint="generate", times=1)
                for engine in d.engines[2:]:
                    engine.faults.set(FaultKind.DIE, leg="decode", endpoint="generate", after=after, times=1)
                await check_relayed(d, name, expected, f"killed after {after}")
                assert prefill_dies.num_hits == 1
