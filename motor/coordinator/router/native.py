"""The native chain: requests that engines serve by themselves (RFC: 原生链路)."""

from collections.abc import Callable

from motor.coordinator.domain.instance import Role
from motor.coordinator.engine.openai_engine_client import NativeRequest, OpenAiEngineClient
from motor.coordinator.router.token_only import rank_header
from motor.coordinator.scheduling.demand import Demand
from motor.coordinator.scheduling.scheduler import Scheduler
from motor.coordinator.telemetry.stages import StageClock
from motor.coordinator.wire.response_sink import ResponseSink

CHAIN_HEADER = b"x-motor-chain"
INSTANCE_HEADER = b"x-motor-instance"

ShownInstances = Callable[[StageClock], list[tuple[bytes, bytes]]]
"""Returns the response header that names the instances, if clients may see it."""


def shown_instances(clock: StageClock) -> list[tuple[bytes, bytes]]:
    """Name the instances that were chosen so far."""
    return [(INSTANCE_HEADER, ",".join(clock.instances).encode())]


def no_instances(clock: StageClock) -> list[tuple[bytes, bytes]]:
    """Keep the instances to ourselves."""
    return []


class NativeRouter:
    """Hands whole requests to `union` instances, else to `decode` instances, which then compute the prompt as well."""

    def __init__(self, scheduler: Scheduler, engines: OpenAiEngineClient, shown: ShownInstances) -> None:
        self._scheduler = scheduler
        self._engines = engines
        self._shown = shown

    async def relay(
        self,
        request: NativeRequest,
        request_headers: dict[str, str],
        demand: Demand,
        sink: ResponseSink,
        clock: StageClock,
    ) -> int:
        """Serve one request; return the engine's status.

        Args:
            request: As the client sent it.
            request_headers: Trace and request-id headers for the engine.
            demand: What to book; an estimate, or 0 tokens, where nobody counted.
            sink: The client.
            clock: Where the stages' time is booked.

        Raises:
            NoInstanceAvailable: No instance.
            EngineFault: The engine failed, with `instance_id` set.
        """
        async with self._scheduler.reserve((Role.UNION, Role.DECODE), demand, clock=clock) as reservation:
            headers = {**request_headers, **rank_header(reservation.data_parallel_rank)}
            shown = [(CHAIN_HEADER, b"native"), *self._shown(clock)]
            return await self._engines.relay(reservation.instance.url, request, headers, sink, shown)
