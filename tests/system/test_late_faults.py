"""Engines that fail when all that was asked of them has been shown."""

import pytest

from motor.simulator import FaultKind
from tests.deployment import CHAT, QUIET, deployment, user

PARIS = user("What is the capital of France?", stream=True, **QUIET)


@pytest.mark.parametrize("kind", [FaultKind.ERROR_EVENT, FaultKind.MALFORMED])
async def test_a_fault_after_the_finish_reason_changes_nothing(kind: FaultKind) -> None:
    async with deployment(num_engines=2) as d:
        undisturbed = await d.post(CHAT, {**PARIS, "stream_options": {"include_usage": True}})
        num_chunks = undisturbed.events[-2]["usage"]["completion_tokens"]  # an engine sends one token a chunk
        for engine in d.engines:
            engine.faults.set(kind, endpoint="generate", after=num_chunks)
        answer = await d.post(CHAT, PARIS)
        assert answer.text() == undisturbed.text()
        assert answer.events[-2]["choices"][0]["finish_reason"] == "stop"
        assert sum(fault.num_hits for engine in d.engines for fault in engine.faults.faults) == 1
        await d.check_nothing_left()
