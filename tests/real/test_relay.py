"""A real engine is killed in mid-answer: the client's stream goes on, from another one, as if nothing had been."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.deployment import CHAT, Deployment
from tests.event_reader import EventReader, open_stream
from tests.real.coordinator import CASES, ask, coordinator, seen_in_events
from tests.real.stack import RealStack, SpareEngine

GAP_SECONDS = 5.0
"""Far more than a gap takes on a busy machine, far less than any timeout."""


@asynccontextmanager
async def streaming(d: Deployment, body: dict[str, Any]) -> AsyncIterator[EventReader]:
    async with open_stream(d, CHAT, {**body, "stream_options": {"include_usage": True}}) as events:
        yield events


def is_visible(event: Any) -> bool:
    """Whether the event carries text, reasoning or a piece of a tool call."""
    return any(
        choice["delta"].get(field) for choice in event["choices"] for field in ("content", "reasoning", "tool_calls")
    )


async def read_until_visible(events: EventReader, num: int) -> list[dict[str, Any]]:
    """Return events up to the `num`-th visible one."""
    taken: list[dict[str, Any]] = []
    while sum(map(is_visible, taken)) < num:
        taken.append(await events.next())
    return taken


@pytest.mark.parametrize("successor", ["engine", "tokens_engine"])
@pytest.mark.parametrize(
    ("name", "num_visible"), [("long", 40), ("reasoning", 1), ("reasoning, then a tool", 1), ("parallel tools", 1)]
)
async def test_a_killed_engine_costs_the_client_nothing(
    real_stack: RealStack,
    spare_engine: SpareEngine,
    record_testsuite_property: Any,
    successor: str,
    name: str,
    num_visible: int,
) -> None:
    _, body = CASES[name]
    url = getattr(real_stack, successor)
    async with coordinator(real_stack, ("union", real_stack.engine)) as d:
        undisturbed = await ask(d, CHAT, body, stream=True)
    async with coordinator(real_stack, ("union", spare_engine.url), ("union", url)) as d:
        async with streaming(d, body) as events:
            before = await read_until_visible(events, num_visible)
            spare_engine.kill()
            killed = time.monotonic()
            after = await events.rest()
        gap = time.monotonic() - killed
        assert after[-1] == "[DONE]"
        assert seen_in_events([*before, *after[:-1]]) == undisturbed
        assert b'motor_attempt_plans_total{plan="resume"} 1.0' in (await d.get(f"{d.management_url}/metrics")).body
        await real_stack.wait_until_idle(url)
    record_testsuite_property(f"{name} {successor} rest_ms", round(gap * 1000))
