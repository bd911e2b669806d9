"""A real engine is killed in mid-answer: the client's stream goes on, from another one, as if nothing had been."""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests.deployment import CHAT
from tests.event_reader import DONE, EventReader, open_stream
from tests.real.coordinator import CASES, ask, coordinator, seen_in_events
from tests.real.stack import RealStack, SpareEngine

GAP_SECONDS = 5.0
"""Far more than a gap takes on a busy machine, far less than any timeout."""

KINDS = [
    ("long", "engine", 0, 600),
    ("reasoning", "engine", 150, 200),
    ("parallel tools", "engine", 150, 200),
    ("emoji", "tokens_engine", 150, 200),
    ("reasoning, then a tool", "tokens_engine", 150, 200),
]
"""Case, engine that goes on, least and most tokens: short answers are made to go on past their end, because a kill at
the first visible token must come before the last one."""


def is_visible(event: Any) -> bool:
    """Whether the event carries text, reasoning or a piece of a tool call."""
    shown = ("content", "reasoning", "tool_calls")
    return any(choice["delta"].get(field) for choice in event["choices"] for field in shown)


async def read_until_visible(events: EventReader) -> list[dict[str, Any]]:
    """Return the events up to the first visible one."""
    taken = [await events.next()]
    while not is_visible(taken[-1]):
        taken.append(await events.next())
    return taken


async def read_rest(events: EventReader) -> tuple[list[dict[str, Any]], float]:
    """Return all further events but `[DONE]`, and the longest pause before one of them in seconds."""
    taken, times = [], [time.monotonic()]
    while (event := await events.next()) is not None:
        taken.append(event)
        times.append(time.monotonic())
    assert taken.pop() == DONE
    return taken, max(after - before for before, after in pairwise(times))


@pytest.mark.parametrize(("name", "successor", "min_tokens", "max_tokens"), KINDS)
async def test_a_killed_engine_costs_the_client_nothing(
    *,
    real_stack: RealStack,
    spare_engine: SpareEngine,
    record_testsuite_property: Callable[[str, object], None],
    name: str,
    successor: str,
    min_tokens: int,
    max_tokens: int,
) -> None:
    """The engine that goes on has the tokenizer that native vLLM needs, or none (`tokens_engine`)."""
    url = getattr(real_stack, successor)
    limits = {"min_tokens": min_tokens, "max_tokens": max_tokens, "stream_options": {"include_usage": True}}
    body = CASES[name][1] | limits
    async with coordinator(real_stack, ("union", real_stack.engine)) as d:
        undisturbed = await ask(d, CHAT, body, stream=True)
    async with coordinator(real_stack, ("union", spare_engine.url), ("union", url)) as d:
        async with open_stream(d, CHAT, body) as events:
            before = await read_until_visible(events)
            spare_engine.kill()
            after, gap = await read_rest(events)
        assert seen_in_events([*before, *after]) == undisturbed
        assert b'motor_attempt_plans_total{plan="resume"} 1.0' in (await d.get(f"{d.management_url}/metrics")).body
        await real_stack.wait_until_idle(url)
    assert gap < GAP_SECONDS
    record_testsuite_property(f"relay_gap_ms {name}", round(gap * 1000))
