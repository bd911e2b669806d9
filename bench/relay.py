"""Relay under chaos: streams while engines are killed, hung and restarted at random; and the gap a kill leaves.

`python -m bench.relay` prints the figures as JSON.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from motor.simulator import FaultKind
from tests.deployment import CHAT, QUIET, Deployment, deployment, user

NUM_STREAMS = 1000
CONCURRENCY = 32
NUM_ENGINES = 4
SEED = 20261201
COMMAND = "make bench ONLY=relay"
PROMPTS = {
    "Say hello.": "Hello there! I am a tiny test model.",
    "Show me emoji.": "Party 🎉🚀 family 👩‍👩‍👧 flag 🇫🇷 café naïve ✓ done.",
    "Say hello in Chinese.": "你好,世界!今天天气很好,我们去公园散步吧。",
}
ENGINE = {"tokens_per_second": 200.0, "first_token_delay_seconds": 0.005}
RELAY = {"retry_reserve": 100_000, "retry_share": 1.0, "max_attempts": 12}
BREAKS = (FaultKind.DIE, FaultKind.EOF, FaultKind.ERROR_EVENT, FaultKind.MALFORMED, FaultKind.ABORT, FaultKind.REFUSE)


@dataclass
class Tally:
    """What became of the streams."""

    whole: int = 0
    clean_errors: int = 0
    lost: int = 0
    duplicated: int = 0

    def count(self, expected: str, text: str, ended_cleanly: bool) -> None:
        """Judge one stream's text against the undisturbed one."""
        if text == expected:
            self.whole += 1
        elif ended_cleanly and expected.startswith(text):
            self.clean_errors += 1
        elif len(text) > len(expected):
            self.duplicated += 1
        else:
            self.lost += 1


def measure() -> dict[str, Any]:
    """Run the chaos and the gap measurement; return figures by name."""
    return asyncio.run(_measure())


async def _measure() -> dict[str, Any]:
    tally, leaked = await _chaos()
    gaps = await _gaps()
    return {
        "chaos_streams": _figure(tally.whole + tally.clean_errors + tally.lost + tally.duplicated, "count"),
        "chaos_lost": _figure(tally.lost, "count", note=f"{tally.clean_errors} ended in a clean error"),
        "chaos_duplicated": _figure(tally.duplicated, "count"),
        "chaos_leaked": _figure(leaked, "count"),
        "relay_gap_ms": _figure(sorted(gaps)[len(gaps) // 2], "ms", samples=gaps),
    }


def _figure(value: float, unit: str, samples: list[float] | None = None, note: str = "") -> dict[str, Any]:
    return {"value": value, "unit": unit, "samples": samples or [value], "command": COMMAND, "note": note}


async def _chaos() -> tuple[Tally, int]:
    tally = Tally()
    timeouts = {"inter_token_seconds": 0.5, "first_token_seconds": 1.0}
    async with deployment(num_engines=NUM_ENGINES, engine=ENGINE, relay=RELAY, timeouts=timeouts) as d:
        turns = iter(range(NUM_STREAMS))
        async with _disturbed(d), asyncio.TaskGroup() as tasks:
            for _ in range(CONCURRENCY):
                tasks.create_task(_stream_in_turn(d, turns, tally))
        await asyncio.sleep(1.0)  # what ends by itself may end
        return tally, sum(d.leftovers().values())


async def _stream_in_turn(d: Deployment, turns: Any, tally: Tally) -> None:
    prompts = list(PROMPTS.items())
    for turn in turns:
        prompt, expected = prompts[turn % len(prompts)]
        answer = await d.post(CHAT, user(prompt, stream=True, **QUIET))
        if answer.status != 200:
            tally.count(expected, "", ended_cleanly="error" in answer.json)
            continue
        events = answer.events
        pieces = [e["choices"][0]["delta"].get("content") or "" for e in events[:-1] if e.get("choices")]
        tally.count(expected, "".join(pieces), ended_cleanly=events[-1] == "[DONE]" and "error" in events[-2])


@asynccontextmanager
async def _disturbed(d: Deployment) -> AsyncIterator[None]:
    chance = random.Random(SEED)  # noqa: S311 - a repeatable course of events, no secret

    async def disturb() -> None:
        while True:
            await asyncio.sleep(chance.uniform(0.01, 0.08))
            engine = chance.choice(d.engines)
            if chance.random() < 0.05:
                await engine.crash()
                await asyncio.sleep(chance.uniform(0.02, 0.2))
                await engine.restart()
            elif chance.random() < 0.1:
                engine.faults.set(FaultKind.HANG, endpoint="generate", times=1)
            else:
                engine.faults.set(chance.choice(BREAKS), endpoint="generate", after=chance.randrange(12), times=1)

    disturbing = asyncio.create_task(disturb())
    try:
        yield
    finally:
        disturbing.cancel()
        for engine in d.engines:
            engine.faults.clear()
            if not engine.is_listening:
                await engine.restart()


async def _gaps(num_samples: int = 20) -> list[float]:
    """Return milliseconds from a kill to the next visible event; detection is immediate, prefill costs nothing."""
    gaps = []
    async with deployment(num_engines=2, engine={"tokens_per_second": 1000.0}, relay=RELAY) as d:
        for _ in range(num_samples):
            for engine in d.engines:
                engine.faults.set(FaultKind.DIE, endpoint="generate", after=6, times=1)
            gaps.append(await _largest_gap(d))
            for engine in d.engines:
                engine.faults.clear()
    return gaps


async def _largest_gap(d: Deployment) -> float:
    body = json.dumps(user("Show me emoji.", stream=True, **QUIET)).encode()
    largest, last = 0.0, 0.0
    async with d.http.post(d.url + CHAT, data=body, headers={"Content-Type": "application/json"}) as response:
        async for _ in response.content.iter_any():
            now = time.perf_counter()
            largest = max(largest, now - last) if last else 0.0
            last = now
    return round(largest * 1000, 2)


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(measure(), indent=2) + "\n")
