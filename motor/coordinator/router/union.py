"""Union (PD Hybrid): one instance does prefill and decode."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from motor.coordinator.domain.generation import GenerateChunk, GenerateResponse
from motor.coordinator.domain.instance import Role
from motor.coordinator.engine.token_engine_client import TokenEngineClient
from motor.coordinator.render.models import TokenizedRequest
from motor.coordinator.router.token_only import Leg, LegKind, demand_of, engine_request, validated
from motor.coordinator.router.topology import Attempt, after_first
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
        async with self._reserved(attempt, request) as reservation:
            instance = reservation.instance
            leg = Leg(
                LegKind.UNION,
                attempt.number,
                is_stream=True,
                data_parallel_rank=reservation.data_parallel_rank,
                forward_headers=attempt.forward_headers,
            )
            wire_form = engine_request(attempt.base_request_id, request, leg)
            async with self._engines.stream(instance.url, wire_form) as stream:
                _log.info("engine.opened", instance=instance.id, phase=leg.kind, attempt=attempt.number)
                yield after_first(stream.chunks(), reservation.release_compute)

    async def generate(self, attempt: Attempt, request: TokenizedRequest) -> GenerateResponse:
        """See `Topology.generate`."""
        async with self._reserved(attempt, request) as reservation:
            instance = reservation.instance
            leg = Leg(
                LegKind.UNION,
                attempt.number,
                data_parallel_rank=reservation.data_parallel_rank,
                forward_headers=attempt.forward_headers,
            )
            wire_form = engine_request(attempt.base_request_id, request, leg)
            response = await self._engines.generate(instance.url, wire_form)
            _log.info("engine.answered", instance=instance.id, phase=leg.kind, attempt=attempt.number)
            return validated(response, request)

    def _reserved(self, attempt: Attempt, request: TokenizedRequest) -> AbstractAsyncContextManager[Reservation]:
        return self._scheduler.reserve(
            self._roles, demand_of(attempt.request_id, request), attempt.excluded_instances, attempt.clock
        )
