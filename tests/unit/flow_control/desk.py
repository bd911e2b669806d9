"""Clients at a gate, each a real task."""

import asyncio
from typing import Any

from motor.coordinator.flow_control.gate import AdmissionGate, AdmissionLease
from motor.coordinator.flow_control.settings import FlowControlSettings
from tests.unit.flow_control.fake_clock import FakeClock, run_ready_tasks


class Desk:
    """A gate for 100 tokens, and clients that hold their lease until told to leave."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.gate = AdmissionGate(FlowControlSettings(**{"max_inflight_tokens": 100, **settings}), self.clock)
        self.leases: dict[str, AdmissionLease] = {}
        self.exits: dict[str, asyncio.Event] = {}

    def start(self, name: str, num_tokens: int = 100, priority: int = 0) -> asyncio.Task[None]:
        """Start a client of tenant `name[0]` that asks for `num_tokens`, 10 of them for output."""
        self.exits[name] = asyncio.Event()
        return asyncio.create_task(self._client(name, num_tokens, priority))

    async def leave(self, name: str) -> None:
        self.exits[name].set()
        await run_ready_tasks()

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Leases, their tokens, waiters, their tokens."""
        gate = self.gate
        return (gate.num_leases, gate.in_use_tokens, gate.num_waiting, gate.num_waiting_tokens)

    async def _client(self, name: str, num_tokens: int, priority: int) -> None:
        async with self.gate.admit(name[0], priority, num_tokens - 10, 10) as lease:
            self.leases[name] = lease
            await self.exits[name].wait()


NOTHING = (0, 0, 0, 0)
