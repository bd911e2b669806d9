"""Builds what gets a prompt to engines: topology, attempt loop, metaserver."""

import random

from motor.coordinator.config import Settings
from motor.coordinator.domain.instance import Role
from motor.coordinator.engine.token_engine_client import EngineTimeouts, TokenEngineClient
from motor.coordinator.router.connectors.nixl import NixlProfile
from motor.coordinator.router.connectors.shared_storage import SharedStorageProfile
from motor.coordinator.router.handoff import HandoffTopology
from motor.coordinator.router.rescheduler import Rescheduler, RetryRules
from motor.coordinator.router.retry_budget import RetryBudget
from motor.coordinator.router.topology import Topology
from motor.coordinator.router.trigger import Metaserver, TriggerTopology
from motor.coordinator.router.union import UnionTopology
from motor.coordinator.scheduling.scheduler import Scheduler
from motor.coordinator.telemetry.metrics import Metrics


def engine_timeouts(settings: Settings) -> EngineTimeouts:
    """Return the limits of engine calls."""
    return EngineTimeouts(
        first_token_seconds=settings.timeouts.first_token_seconds,
        inter_token_seconds=settings.timeouts.inter_token_seconds,
        request_seconds=settings.timeouts.request_seconds,
    )


def build_metaserver(settings: Settings, scheduler: Scheduler, engines: TokenEngineClient) -> Metaserver | None:
    """Build the server that decode engines call, with Trigger only."""
    if settings.deploy_mode != "trigger":
        return None
    trigger = settings.trigger
    return Metaserver(scheduler, engines, trigger.advertised_url or f"http://{trigger.host}:{trigger.port}")


def build_rescheduler(settings: Settings, topology: Topology, metrics: Metrics) -> Rescheduler:
    """Build the attempt loop around a topology."""
    relay = settings.relay
    rules = RetryRules(
        max_attempts=relay.max_attempts,
        max_recomputes=relay.max_recomputes,
        request_seconds=settings.timeouts.request_seconds,
        allow_approximate=relay.allow_approximate,
    )
    budget = RetryBudget(relay.retry_share, relay.retry_reserve)
    return Rescheduler(topology, rules, budget, random.random, metrics.retry_planned)


def build_topology(
    settings: Settings,
    scheduler: Scheduler,
    engines: TokenEngineClient,
    metaserver: Metaserver | None,
    metrics: Metrics,
) -> Topology:
    """Build the topology that `deploy_mode` names."""
    if settings.deploy_mode == "union":
        return UnionTopology(scheduler, engines)
    alone = UnionTopology(scheduler, engines, (Role.UNION, Role.DECODE))
    if metaserver is not None:
        may_be_alone = settings.trigger.allow_decode_alone
        return TriggerTopology(scheduler, engines, metaserver, alone if may_be_alone else None, metrics.topology_used)
    connector = NixlProfile() if settings.handoff.connector == "nixl" else SharedStorageProfile()
    may_be_alone = settings.handoff.allow_decode_alone
    return HandoffTopology(scheduler, engines, connector, alone if may_be_alone else None, metrics.topology_used)
