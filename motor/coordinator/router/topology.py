"""What every topology is to the attempt loop: acquire, order, release; never the Render protocol."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from motor.coordinator.domain.generation import GenerateChunk, GenerateResponse
from motor.coordinator.render.models import TokenizedRequest
from motor.coordinator.telemetry.stages import StageClock


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try at one prompt.

    Attributes:
        base_request_id: The public id of the client's request, from which engine request ids are made.
        request_id: The same request as logs know it.
        number: 0 for the first.
        excluded_instances: Ids of instances that failed this request already.
        forward_headers: Headers for every peer.
        clock: Where the time of choosing instances is booked.
    """

    base_request_id: str
    request_id: str
    clock: StageClock
    number: int = 0
    excluded_instances: frozenset[str] = frozenset()
    forward_headers: Mapping[str, str] = field(default_factory=dict)


class Topology(Protocol):
    """How instances work together on one prompt."""

    def stream(
        self, attempt: Attempt, request: TokenizedRequest
    ) -> AbstractAsyncContextManager[AsyncGenerator[GenerateChunk]]:
        """Open the stream that carries the answer; leaving the block frees everything the attempt holds.

        Raises:
            EngineFault: With `instance_id` set.
            MotorError: Anything that another attempt can't mend.
        """

    async def generate(self, attempt: Attempt, request: TokenizedRequest) -> GenerateResponse:
        """Return the complete answer; raises as `stream`."""


async def after_first(
    chunks: AsyncGenerator[GenerateChunk], on_first: Callable[[], None]
) -> AsyncGenerator[GenerateChunk]:
    """Pass chunks on; `on_first` is called when the first one has come, which is when the prompt has been computed."""
    try:
        is_first = True
        async for chunk in chunks:
            if is_first:
                on_first()
                is_first = False
            yield chunk
    finally:
        await chunks.aclose()
