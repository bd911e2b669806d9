"""Handoff: prefill computes the prompt, then decode takes its KV cache over and answers.

Parameters that prefill answered are used once: they live in a `Handover`, which is either taken by a decode leg or
freed. Freeing is the work of a decode engine too, the only peer that prefill listens to: a decode of one token reads
the blocks, and with that they are gone, instead of waiting out their lease.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from motor.coordinator.domain.errors import EngineFault, MotorError, TokenOnlyUnsupported
from motor.coordinator.domain.generation import GenerateChunk, GenerateResponse, GenerateUsage
from motor.coordinator.domain.instance import Role
from motor.coordinator.engine.token_engine_client import EngineRequest, TokenEngineClient
from motor.coordinator.render.models import TokenizedRequest
from motor.coordinator.router.connectors.profile import ConnectorProfile
from motor.coordinator.router.token_only import Leg, LegKind, demand_of, engine_request, prefill_request, validated
from motor.coordinator.router.topology import Attempt
from motor.coordinator.router.union import UnionTopology
from motor.coordinator.scheduling.demand import Demand
from motor.coordinator.scheduling.reservation import Reservation
from motor.coordinator.scheduling.scheduler import Scheduler
from motor.coordinator.telemetry.log import get_logger

FREE_SECONDS = 5.0
"""Limit of freeing a prefill's blocks; after it they wait out their lease."""

FREE_TRIES = 2

_log = get_logger(__name__)


class Handover:
    """What one prefill left for one decode; mutable: `_is_open`.

    Attributes:
        params: For the decode leg.
        usage: Prefill's; its cached tokens are the request's.
    """

    def __init__(self, params: dict[str, Any] | None, usage: GenerateUsage | None, reservation: Reservation) -> None:
        self.params = params
        self.usage = usage
        self._reservation = reservation
        self._is_open = params is not None

    @property
    def is_open(self) -> bool:
        """Whether blocks wait for a decode that has not taken them."""
        return self._is_open

    def taken(self) -> None:
        """A decode engine has accepted the parameters: from now on the blocks are its business."""
        self._is_open = False

    def arrived(self) -> None:
        """Decode has begun to answer: prefill holds nothing for this request any more."""
        self._reservation.release_kv()


class HandoffTopology:
    """Prefill, then decode.

    Args:
        scheduler: Chooses and reserves.
        engines: The wire.
        connector: How the KV cache gets over.
        alone: Serves by decode instances alone; `None` if that isn't allowed.
        on_topology: Told the topology and the reason of each attempt, for metrics.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engines: TokenEngineClient,
        connector: ConnectorProfile,
        alone: UnionTopology | None,
        on_topology: Callable[[str, str], None],
    ) -> None:
        self._scheduler = scheduler
        self._engines = engines
        self._connector = connector
        self._alone = alone
        self._on_topology = on_topology

    @asynccontextmanager
    async def stream(self, attempt: Attempt, request: TokenizedRequest) -> AsyncIterator[AsyncGenerator[GenerateChunk]]:
        """See `Topology.stream`."""
        alone = self._alone_for(request)
        if alone is not None:
            async with alone.stream(attempt, request) as chunks:
                yield chunks
            return
        async with self._prefilled(attempt, request) as handover, self._decoding(attempt, request) as decode:
            leg = self._decode_leg(attempt, handover, decode, is_stream=True)
            wire_form = engine_request(attempt.base_request_id, request, leg)
            async with self._engines.stream(decode.instance.url, wire_form) as stream:
                handover.taken()
                _log.info("engine.opened", instance=decode.instance.id, phase=leg.kind, attempt=attempt.number)
                yield _after_prefill(stream.chunks(), handover)

    async def generate(self, attempt: Attempt, request: TokenizedRequest) -> GenerateResponse:
        """See `Topology.generate`."""
        alone = self._alone_for(request)
        if alone is not None:
            return await alone.generate(attempt, request)
        async with self._prefilled(attempt, request) as handover, self._decoding(attempt, request) as decode:
            leg = self._decode_leg(attempt, handover, decode, is_stream=False)
            wire_form = engine_request(attempt.base_request_id, request, leg)
            response = validated(await self._engines.generate(decode.instance.url, wire_form), request)
            handover.taken()
            _log.info("engine.answered", instance=decode.instance.id, phase=leg.kind, attempt=attempt.number)
            if response.usage is not None and handover.usage is not None:
                response.usage.prompt_tokens_details = handover.usage.prompt_tokens_details
            return response

    def _alone_for(self, request: TokenizedRequest) -> UnionTopology | None:
        """Return the topology that serves without prefill, if this request must or has to be content with it.

        Raises:
            TokenOnlyUnsupported: It must, and may not.
        """
        reason = _alone_reason(request)
        if reason is not None and self._alone is None:
            raise TokenOnlyUnsupported(f"decode can't take over what prefill computes ({reason})")
        if reason is None and not self._scheduler.has_usable(Role.PREFILL):
            reason = "no_prefill"
        if reason is None or self._alone is None:
            self._on_topology("handoff", "configured")
            return None
        self._on_topology("decode_alone", reason)
        return self._alone

    @asynccontextmanager
    async def _prefilled(self, attempt: Attempt, request: TokenizedRequest) -> AsyncIterator[Handover]:
        """Run the prefill leg; on leaving, blocks that no decode has taken are freed."""
        demand = demand_of(attempt.request_id, request).for_prefill()
        async with self._scheduler.reserve(
            (Role.PREFILL,), demand, attempt.excluded_instances, attempt.clock
        ) as reservation:
            leg = Leg(
                LegKind.PREFILL,
                attempt.number,
                kv_transfer_params=self._connector.prefill_params(),
                data_parallel_rank=reservation.data_parallel_rank,
                forward_headers=attempt.forward_headers,
            )
            wire_form = engine_request(attempt.base_request_id, prefill_request(request), leg)
            response = await self._engines.generate(reservation.instance.url, wire_form)
            params = self._connector.decode_params(response.kv_transfer_params, request.num_prompt_tokens)
            reservation.release_compute()
            _log.info("engine.answered", instance=reservation.instance.id, phase=leg.kind, attempt=attempt.number)
            handover = Handover(params, response.usage, reservation)
            try:
                yield handover
            finally:
                if handover.is_open and self._connector.holds_kv:
                    await _shielded(self._free(attempt, request, handover))

    def _decoding(self, attempt: Attempt, request: TokenizedRequest) -> AbstractAsyncContextManager[Reservation]:
        demand = demand_of(attempt.request_id, request).for_decode()
        return self._scheduler.reserve((Role.DECODE,), demand, attempt.excluded_instances, attempt.clock)

    @staticmethod
    def _decode_leg(attempt: Attempt, handover: Handover, decode: Reservation, *, is_stream: bool) -> Leg:
        return Leg(
            LegKind.DECODE,
            attempt.number,
            is_stream=is_stream,
            kv_transfer_params=handover.params,
            data_parallel_rank=decode.data_parallel_rank,
            forward_headers=attempt.forward_headers,
        )

    async def _free(self, attempt: Attempt, request: TokenizedRequest, handover: Handover) -> None:
        """Have a decode engine read the blocks of a prefill that nobody decodes; if it can't, another one."""
        leg = Leg(LegKind.RELEASE, attempt.number, kv_transfer_params=handover.params)
        handover.taken()
        wire_form = engine_request(attempt.base_request_id, prefill_request(request), leg)
        refused: set[str] = set()
        try:
            async with asyncio.timeout(FREE_SECONDS):
                while len(refused) < FREE_TRIES:
                    if await self._free_by(wire_form, request, refused):
                        return
        except (MotorError, TimeoutError) as error:
            _log.warning("prefill.not_freed", error_type=type(error).__name__, effect="its blocks wait out their lease")

    async def _free_by(self, wire_form: EngineRequest, request: TokenizedRequest, refused: set[str]) -> bool:
        try:
            demand = Demand(request.num_prompt_tokens, computes_prompt=False)
            async with self._scheduler.reserve((Role.DECODE,), demand, frozenset(refused)) as decode:
                await self._engines.generate(decode.instance.url, wire_form)
                _log.info("prefill.freed", instance=decode.instance.id)
                return True
        except EngineFault as fault:
            refused.add(fault.instance_id or "")
            if len(refused) == FREE_TRIES:
                raise
            return False


async def _after_prefill(chunks: AsyncGenerator[GenerateChunk], handover: Handover) -> AsyncGenerator[GenerateChunk]:
    """Pass decode's chunks on, prefill's cached tokens first."""
    if handover.usage is not None:
        yield GenerateChunk(usage=handover.usage)
    try:
        async for chunk in chunks:
            handover.arrived()
            yield chunk
    finally:
        await chunks.aclose()


def _alone_reason(request: TokenizedRequest) -> str | None:
    if request.num_choices > 1:
        return "several_choices"  # every choice would take the same blocks, and they can be taken once
    if request.sampling_params.get("prompt_logprobs") is not None:
        return "prompt_logprobs"  # decode computes the prompt anew for them
    return None


async def _shielded(work: Coroutine[Any, Any, None]) -> None:
    """Finish a release even while being cancelled; it limits itself in time."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise
