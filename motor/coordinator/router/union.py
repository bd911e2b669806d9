"""Union (PD Hybrid): one instance does prefill and decode."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from motor.coordinator.domain.generation import GenerateChunk, GenerateResponse
from motor.coordinator.domain.instance import Role
from motor.coordinator.engine.token_engine_client import TokenEngineClient
from motor.coordinator.render.models import TokenizedRequest
from motor.coordinator.router.token_only import Leg, LegKind, engine_request, validated
from motor.coordinator.router.topology import Attempt
from motor.coordinator.scheduling.reservation import Reservation
from motor.coordinator.scheduling.scheduler import Scheduler
from motor.coordinator.telemetry.log import get_logger

_log = get_logger(__name__)


class UnionTopology:
    """Runs each prompt on one instance.

    Args:
        scheduler: Chooses and reserves.
        engines: The wire.
        roles: Which instances may serve, the preferred role first.
    """

    def __init__(
        self, scheduler: Scheduler, engines: TokenEngineClient, roles: tuple[Role, ...] = (Role.UNION,)
    ) -> None:
        self._scheduler = scheduler
        self._engines = engines
        self._roles = roles

    @asynccontextmanager
    async def stream(self, attempt: Attempt, request: TokenizedRequest) -> AsyncIterator[AsyncGenerator[GenerateChunk]]:
        """See `Topology.stream`."""
        leg = Leg(LegKind.UNION, attempt.number, is_stream=True, forward_headers=attempt.forward_headers)
        async with self._reserved(attempt, request) as reservation:
            instance = reservation.instance
            wire_form = engine_request(attempt.base_request_id, request, leg)
            async with self._engines.stream(instance.url, wire_form) as stream:
                _log.info("engine.opened", instance=instance.id, phase=leg.kind, attempt=attempt.number)
                yield stream.chunks()

    async def generate(self, attempt: Attempt, request: TokenizedRequest) -> GenerateResponse:
        """See `Topology.generate`."""
        leg = Leg(LegKind.UNION, attempt.number, forward_headers=attempt.forward_headers)
        async with self._reserved(attempt, request) as reservation:
            instance = reservation.instance
            wire_form = engine_request(attempt.base_request_id, request, leg)
            response = await self._engines.generate(instance.url, wire_form)
            _log.info("engine.answered", instance=instance.id, phase=leg.kind, attempt=attempt.number)
            return validated(response, request)

    @asynccontextmanager
    async def _reserved(self, attempt: Attempt, request: TokenizedRequest) -> AsyncIterator[Reservation]:
        started = attempt.clock.now()
        async with self._scheduler.reserve(
            self._roles, request.num_prompt_tokens, attempt.excluded_instances
        ) as reservation:
            attempt.clock.add("schedule", attempt.clock.now() - started)
            yield reservation
