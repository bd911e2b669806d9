"""The attempt loop: one logic for every topology, streamed or not."""

from motor.coordinator.domain.generation import GenerateResponse
from motor.coordinator.domain.request import ClientRequest
from motor.coordinator.render.models import ChunkSink, TokenizedRequest
from motor.coordinator.router.topology import Attempt, Topology
from motor.coordinator.telemetry.stages import StageClock


class Rescheduler:
    """Runs prompts through a topology."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    async def generate(self, client: ClientRequest, request: TokenizedRequest, clock: StageClock) -> GenerateResponse:
        """Return the complete answer to one prompt.

        Raises:
            MotorError: The last attempt's error.
        """
        return await self._topology.generate(self._first_attempt(client, clock), request)

    async def stream(
        self, client: ClientRequest, request: TokenizedRequest, sink: ChunkSink, clock: StageClock
    ) -> None:
        """Push one prompt's chunks into `sink` until the engine has finished every choice; raises as `generate`."""
        async with self._topology.stream(self._first_attempt(client, clock), request) as chunks:
            await sink.opened()
            async for chunk in chunks:
                await sink.put(chunk)

    @staticmethod
    def _first_attempt(client: ClientRequest, clock: StageClock) -> Attempt:
        return Attempt(client.api.id_prefix + client.peer_id, clock, forward_headers=client.forward_headers)
