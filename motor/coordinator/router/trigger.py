"""Trigger: decode is asked first; its connector calls our metaserver, which runs prefill, which pushes the KV cache.

Kept thin, so that it can be deleted when Trigger is retired (RFC: Trigger 已计划日落).
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from motor.coordinator.domain.errors import EngineFault, MotorError, TokenOnlyUnsupported, TransferUnknown
from motor.coordinator.domain.generation import GenerateChunk, GenerateResponse
from motor.coordinator.domain.instance import Role
from motor.coordinator.engine.token_engine_client import EngineRequest, TokenEngineClient
from motor.coordinator.render.models import TokenizedRequest
from motor.coordinator.router.token_only import Leg, LegKind, demand_of, engine_request, prefill_request, validated
from motor.coordinator.router.topology import Attempt
from motor.coordinator.router.union import UnionTopology
from motor.coordinator.scheduling.scheduler import Scheduler
from motor.coordinator.telemetry.log import get_logger

_log = get_logger(__name__)


@dataclass(slots=True)
class _Expected:
    """A decode that may call; mutable: both scopes, `error`, `has_ended`."""

    attempt: Attempt
    request: TokenizedRequest
    decode_scope: asyncio.Timeout
    prefill_scope: asyncio.Timeout | None = None
    error: MotorError | None = None
    has_ended: bool = False

    def fail_decode(self, error: MotorError) -> None:
        """Prefill has failed: the decode that waits for it ends with the same error."""
        if self.has_ended:
            return  # a scope that was left can't be rescheduled
        self.error = error
        self.decode_scope.reschedule(asyncio.get_running_loop().time())

    def end_prefill(self) -> None:
        """The decode has ended: nobody wants the prefill any more."""
        self.has_ended = True
        if self.prefill_scope is not None:
            self.prefill_scope.reschedule(asyncio.get_running_loop().time())


@dataclass(slots=True)
class Metaserver:
    """Runs the prefill that a decode engine calls for; mutable: `_expected`.

    A call is known by an unguessable token in its URL that is good for one call of one live decode.

    Args:
        scheduler: Chooses prefill instances.
        engines: The wire.
        base_url: Where decode engines reach us.
    """

    scheduler: Scheduler
    engines: TokenEngineClient
    base_url: str
    _expected: dict[str, _Expected] = field(default_factory=dict)

    @property
    def num_expected(self) -> int:
        """Decodes that may still call; zero when nothing leaks."""
        return len(self._expected)

    @contextmanager
    def expecting(self, expected: _Expected) -> Iterator[str]:
        """Accept one call for a decode while the block lasts; the URL for it is yielded."""
        token = secrets.token_urlsafe(24)
        self._expected[token] = expected
        try:
            yield f"{self.base_url}/v1/metaserver/{token}"
        finally:
            self._expected.pop(token, None)
            expected.end_prefill()

    async def prefill(self, token: str, posted: Mapping[str, Any]) -> GenerateResponse:
        """Run the prefill that a decode engine asks for.

        Args:
            token: From the URL.
            posted: The `kv_transfer_params` for prefill.

        Raises:
            TransferUnknown: No such decode, or it has called before, or ended meanwhile.
            MotorError: Prefill failed; the decode ends with the same error.
        """
        expected = self._expected.pop(token, None)
        if expected is None:
            raise TransferUnknown("no decode waits for this prefill")
        try:
            async with asyncio.timeout(None) as scope:
                expected.prefill_scope = scope
                return await self._run(expected, posted)
        except TimeoutError as error:
            raise TransferUnknown("the decode has ended") from error
        except MotorError as error:
            expected.fail_decode(error)
            raise
        finally:
            expected.prefill_scope = None

    async def _run(self, expected: _Expected, posted: Mapping[str, Any]) -> GenerateResponse:
        attempt, request = expected.attempt, expected.request
        demand = demand_of(attempt.request_id, request).for_prefill()
        async with self.scheduler.reserve(
            (Role.PREFILL,), demand, attempt.excluded_instances, attempt.clock
        ) as reservation:
            leg = Leg(
                LegKind.PREFILL,
                attempt.number,
                kv_transfer_params=posted,
                data_parallel_rank=reservation.data_parallel_rank,
                forward_headers=attempt.forward_headers,
            )
            wire_form = engine_request(attempt.base_request_id, prefill_request(request), leg)
            response = await self.engines.generate(reservation.instance.url, wire_form)
            _log.info("engine.answered", instance=reservation.instance.id, phase=leg.kind, attempt=attempt.number)
            return response


class TriggerTopology:
    """Decode, which calls for its prefill.

    Args:
        scheduler: Chooses decode instances.
        engines: The wire.
        metaserver: Where decode engines call.
        alone: Serves without prefill; `None` if that isn't allowed.
        on_topology: Told the topology and the reason of each attempt, for metrics.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        engines: TokenEngineClient,
        metaserver: Metaserver,
        alone: UnionTopology | None,
        on_topology: Callable[[str, str], None],
    ) -> None:
        self._scheduler = scheduler
        self._engines = engines
        self._metaserver = metaserver
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
        async with (
            self._decoding(attempt, request, is_stream=True) as (url, wire_form),
            self._engines.stream(url, wire_form) as stream,
        ):
            yield stream.chunks()

    async def generate(self, attempt: Attempt, request: TokenizedRequest) -> GenerateResponse:
        """See `Topology.generate`."""
        alone = self._alone_for(request)
        if alone is not None:
            return await alone.generate(attempt, request)
        async with self._decoding(attempt, request, is_stream=False) as (url, wire_form):
            return validated(await self._engines.generate(url, wire_form), request)

    def _alone_for(self, request: TokenizedRequest) -> UnionTopology | None:
        """Return the topology that serves without prefill; raises as Handoff's if there must be one."""
        reason = "several_choices" if request.num_choices > 1 else None
        if reason is not None and self._alone is None:
            raise TokenOnlyUnsupported(f"decode can't take over what prefill computes ({reason})")
        if reason is None and not self._scheduler.has_usable(Role.PREFILL):
            reason = "no_prefill"
        if reason is None or self._alone is None:
            self._on_topology("trigger", "configured")
            return None
        self._on_topology("decode_alone", reason)
        return self._alone

    @asynccontextmanager
    async def _decoding(
        self, attempt: Attempt, request: TokenizedRequest, *, is_stream: bool
    ) -> AsyncIterator[tuple[str, EngineRequest]]:
        """Reserve a decode instance and expect its call; a failed prefill ends the block with prefill's fault."""
        demand = demand_of(attempt.request_id, request).for_decode()
        async with (
            self._scheduler.reserve((Role.DECODE,), demand, attempt.excluded_instances, attempt.clock) as reservation,
            _ended_by_prefill(attempt, request) as expected,
        ):
            with self._metaserver.expecting(expected) as metaserver_url:
                leg = Leg(
                    LegKind.DECODE,
                    attempt.number,
                    is_stream=is_stream,
                    kv_transfer_params={
                        "do_remote_decode": False,
                        "do_remote_prefill": True,
                        "metaserver": metaserver_url,
                    },
                    data_parallel_rank=reservation.data_parallel_rank,
                    forward_headers=attempt.forward_headers,
                )
                _log.info("engine.asked", instance=reservation.instance.id, phase=leg.kind, attempt=attempt.number)
                yield reservation.instance.url, engine_request(attempt.base_request_id, request, leg)


@asynccontextmanager
async def _ended_by_prefill(attempt: Attempt, request: TokenizedRequest) -> AsyncIterator[_Expected]:
    expected: _Expected | None = None
    try:
        async with asyncio.timeout(None) as scope:
            expected = _Expected(attempt, request, scope)
            yield expected
    except TimeoutError:
        if expected is None or expected.error is None:
            raise
        raise expected.error from None
    except EngineFault:
        # Decode may break because prefill did, and be the first to say so.
        if expected is not None and expected.error is not None:
            raise expected.error from None
        raise
