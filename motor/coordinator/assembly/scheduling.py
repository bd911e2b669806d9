"""Builds what chooses engines: the instances, the scheduler, and the KV conductor that it asks."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from motor.coordinator.config import Settings
from motor.coordinator.config_sections import InstanceSection
from motor.coordinator.domain.instance import Instance, KvEvents, Role
from motor.coordinator.instances.breaker_board import BreakerBoard
from motor.coordinator.instances.circuit_breaker import BreakerRules
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.kv_query.embedded_conductor import EmbeddedConductor
from motor.coordinator.kv_query.external_conductor import ExternalConductor
from motor.coordinator.kv_query.port import EndpointKey, EventSource, KvQuery, address_of_rank
from motor.coordinator.scheduling.decision_log import DecisionLog
from motor.coordinator.scheduling.load_ledger import LoadLedger
from motor.coordinator.scheduling.ranking import Policy
from motor.coordinator.scheduling.scheduler import Scheduler, SchedulingRules
from motor.coordinator.telemetry.log import get_logger
from motor.coordinator.telemetry.metrics import Metrics
from motor.coordinator.transport.http_pool import HttpPool

REGISTER_AGAIN_SECONDS = 30.0
"""A conductor that was restarted has lost what it was told; it hears of the engines again this often."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Scheduling:
    """Who is chosen, and by what.

    Attributes:
        registry: What exists.
        ledger: Who does how much.
        decisions: Why.
        scheduler: Chooses.
        services: What must run for it.
    """

    registry: InstanceRegistry
    ledger: LoadLedger
    decisions: DecisionLog
    scheduler: Scheduler
    services: tuple[Callable[[], Coroutine[None, None, None]], ...]


def build_scheduling(settings: Settings, metrics: Metrics, pool: HttpPool) -> Scheduling:
    """Build the scheduler and all that it asks."""
    registry = InstanceRegistry(instance_of(one) for one in settings.instances)
    ledger = LoadLedger()
    decisions = DecisionLog(settings.scheduling.remembered_requests)
    kv_query, services = _kv_query(settings, registry, metrics, pool)
    rules = SchedulingRules(
        policy=Policy(settings.scheduling.policy),
        held_token_cost=settings.scheduling.held_token_cost,
        max_output_tokens=settings.flow_control.expected_output_tokens,
        model_names=settings.model.served_model_name,
    )
    breakers = BreakerBoard(BreakerRules(), time.monotonic)
    scheduler = Scheduler(registry, ledger, breakers, rules=rules, decisions=decisions, kv_query=kv_query)
    return Scheduling(registry, ledger, decisions, scheduler, services)


def instance_of(section: InstanceSection) -> Instance:
    """Return an instance as the configuration has it."""
    events = section.kv_events
    return Instance(
        section.id,
        Role(section.role),
        section.url,
        section.data_parallel_size,
        None if events is None else KvEvents(**events.model_dump()),
    )


def event_sources(instance: Instance, model: str) -> list[EventSource]:
    """Return where each rank of an instance publishes its KV events."""
    events = instance.kv_events
    if events is None:
        return []
    return [
        EventSource(
            EndpointKey(instance.id, rank),
            model,
            address_of_rank(events.address, rank),
            None if events.replay_address is None else address_of_rank(events.replay_address, rank),
            events.topic,
            events.is_bound_here,
        )
        for rank in range(instance.data_parallel_size)
    ]


def _kv_query(
    settings: Settings, registry: InstanceRegistry, metrics: Metrics, pool: HttpPool
) -> tuple[KvQuery | None, tuple[Callable[[], Coroutine[None, None, None]], ...]]:
    if settings.scheduling.policy != "kv_cache_affinity":
        return None, ()
    if not settings.render_config.enable:
        _log.warning(
            "kv_query.without_render",
            advice="set render_config.enable, so that caches are asked for the very ids that engines compute",
        )
    model = settings.model.served_model_name[0]
    section = settings.kv_conductor
    sources = [(one.role, source) for one in registry.all() for source in event_sources(one, model)]
    if section.mode == "external":
        external = ExternalConductor(
            pool,
            section.url or "",
            block_size=section.block_size,
            tenant_id=section.tenant_id,
            timeout_seconds=section.timeout_ms / 1000,
            on_no_answer=metrics.kv_query_unanswered,
        )

        async def keep_registered() -> None:
            for role, source in sources:
                await external.register(source, role)
            while True:
                await asyncio.sleep(REGISTER_AGAIN_SECONDS)
                await external.register_again()

        return external, (keep_registered,)
    embedded = EmbeddedConductor(
        max_blocks=section.max_blocks,
        speculation_seconds=section.speculation_seconds,
        on_fault=metrics.kv_events_fault,
    )
    metrics.watch_kv_index(lambda: embedded.statistics().num_blocks)

    async def follow_events() -> None:
        with embedded:
            for _, source in sources:
                embedded.register(source)
            await asyncio.Event().wait()

    return embedded, (follow_events,)
