"""The native chain: requests that engines serve by themselves (RFC: 原生链路)."""

from motor.coordinator.domain.instance import Role
from motor.coordinator.engine.openai_engine_client import NativeRequest, OpenAiEngineClient
from motor.coordinator.scheduling.scheduler import Scheduler
from motor.coordinator.wire.response_sink import ResponseSink

CHAIN_HEADER = b"x-motor-chain"


class NativeRouter:
    """Hands whole requests to `union` instances, else to `decode` instances, which then compute the prompt as well."""

    def __init__(self, scheduler: Scheduler, engines: OpenAiEngineClient) -> None:
        self._scheduler = scheduler
        self._engines = engines

    async def relay(
        self, request: NativeRequest, request_headers: dict[str, str], num_prompt_tokens: int, sink: ResponseSink
    ) -> int:
        """Serve one request; return the engine's status.

        Args:
            request: As the client sent it.
            request_headers: Trace and request-id headers for the engine.
            num_prompt_tokens: What to book; an estimate, or 0, where nobody counted.
            sink: The client.

        Raises:
            NoInstanceAvailable: No instance.
            EngineFault: The engine failed, with `instance_id` set.
        """
        async with self._scheduler.reserve((Role.UNION, Role.DECODE), num_prompt_tokens) as reservation:
            url = reservation.instance.url
            return await self._engines.relay(url, request, request_headers, sink, [(CHAIN_HEADER, b"native")])
