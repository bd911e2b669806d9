"""Admission of requests: what a request is worth to the gate, and whose it is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from motor.coordinator.domain.request import ClientRequest
from motor.coordinator.flow_control.gate import AdmissionGate, AdmissionLease
from motor.coordinator.telemetry.stages import StageClock

BYTES_PER_TOKEN = 4
"""Of text that nobody has tokenized."""


class CountedBatch(Protocol):
    """What the gate needs of tokenized prompts."""

    @property
    def client(self) -> ClientRequest:
        """The request."""

    @property
    def num_prompt_tokens(self) -> int:
        """Exact prompt tokens of all prompts."""

    @property
    def num_choices(self) -> int:
        """Choices of all prompts."""

    @property
    def num_output_tokens(self) -> int:
        """The most output tokens that all choices may have."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Admits requests through a gate.

    Attributes:
        gate: Where they wait.
        expected_output_tokens: Output expected of a choice, unless its `max_tokens` is less.
    """

    gate: AdmissionGate
    expected_output_tokens: int

    @asynccontextmanager
    async def rendered(self, batch: CountedBatch, clock: StageClock) -> AsyncIterator[AdmissionLease]:
        """Hold a lease for exact prompt tokens; raises as `AdmissionGate.admit`."""
        expected = min(batch.num_output_tokens, batch.num_choices * self.expected_output_tokens)
        async with self._admitted(batch.client, batch.num_prompt_tokens, expected, clock) as lease:
            yield lease

    @asynccontextmanager
    async def unrendered(
        self, client: ClientRequest, num_prompt_tokens: int, clock: StageClock
    ) -> AsyncIterator[AdmissionLease]:
        """Hold a lease for a request of the native chain; without a count, one is guessed from the body's length."""
        num_tokens = num_prompt_tokens or len(client.body) // BYTES_PER_TOKEN
        async with self._admitted(client, num_tokens, self.expected_output_tokens, clock) as lease:
            yield lease

    @asynccontextmanager
    async def _admitted(
        self, client: ClientRequest, num_prompt_tokens: int, num_expected_tokens: int, clock: StageClock
    ) -> AsyncIterator[AdmissionLease]:
        started = clock.now()
        async with self.gate.admit(client.tenant, client.priority, num_prompt_tokens, num_expected_tokens) as lease:
            clock.add("flow_control", clock.now() - started)
            yield lease
