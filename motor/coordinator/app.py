"""The composition root: builds every object once from the settings, and runs the servers."""

import asyncio
import random
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from motor.coordinator.api.application import ModelCard, management_application, public_application
from motor.coordinator.api.endpoints import Edge, EdgeLimits
from motor.coordinator.api.metaserver import metaserver_application
from motor.coordinator.api.request_limits import RequestLimits
from motor.coordinator.api.server import Application, ServerLimits, listen, run_applications
from motor.coordinator.config import FlowControlSection, Settings
from motor.coordinator.domain.instance import Instance, Role
from motor.coordinator.engine.openai_engine_client import OpenAiEngineClient
from motor.coordinator.engine.token_engine_client import EngineTimeouts, TokenEngineClient
from motor.coordinator.flow_control.admission import Admission
from motor.coordinator.flow_control.gate import AdmissionGate
from motor.coordinator.flow_control.settings import FlowControlSettings, Oversized, TenantSettings
from motor.coordinator.instances.breaker_board import BreakerBoard
from motor.coordinator.instances.circuit_breaker import BreakerRules
from motor.coordinator.instances.engine_facts import EngineFactsFeed
from motor.coordinator.instances.readiness import ReadinessProbe
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.pipeline import Pipeline, TokenChain
from motor.coordinator.render.local_tokenizer import LocalTokenizer
from motor.coordinator.render.parity_probe import ParityProbe
from motor.coordinator.render.peer_facts import PeerFactsFeed
from motor.coordinator.render.sidecar_facts import SidecarFactsFeed
from motor.coordinator.render.streaming_response import SessionSettings
from motor.coordinator.render.tokenization_service import TokenizationService
from motor.coordinator.render.vllm_render_client import VllmRenderClient
from motor.coordinator.render.vocabulary import Vocabulary, load_vocabulary
from motor.coordinator.router.connectors.nixl import NixlProfile
from motor.coordinator.router.connectors.shared_storage import SharedStorageProfile
from motor.coordinator.router.handoff import HandoffTopology
from motor.coordinator.router.native import NativeRouter
from motor.coordinator.router.rescheduler import Rescheduler, RetryRules
from motor.coordinator.router.retry_budget import RetryBudget
from motor.coordinator.router.topology import Topology
from motor.coordinator.router.trigger import Metaserver, TriggerTopology
from motor.coordinator.router.union import UnionTopology
from motor.coordinator.scheduling.load_ledger import LoadLedger
from motor.coordinator.scheduling.scheduler import Scheduler
from motor.coordinator.telemetry.log import get_logger
from motor.coordinator.telemetry.metrics import Metrics
from motor.coordinator.telemetry.recent_requests import RecentRequests
from motor.coordinator.telemetry.trace import child_trace_headers
from motor.coordinator.transport.http_pool import HttpPool

_log = get_logger(__name__)


FEED_SECONDS = 5.0
"""How often peers are asked what they can do. No vLLM starts faster: one that is replaced is missed at least once."""
RECHECK_SECONDS = 0.5
"""How often while any of them is missed, so that another version is known as soon as it serves."""

Feed = Callable[[], Awaitable[bool]]
"""Asks peers; tells whether all of them answered."""
Service = Callable[[], Coroutine[None, None, None]]
"""Runs as long as the Coordinator."""


@dataclass(frozen=True, slots=True)
class Coordinator:
    """A built Coordinator: its two applications, its background feeds, and what tests and operators look into."""

    feeds: tuple[Feed, ...]
    services: tuple[Service, ...]
    applications: tuple[Application, ...]
    metrics: Metrics
    ledger: LoadLedger
    pool: HttpPool
    render_client: VllmRenderClient | None
    gate: AdmissionGate
    metaserver: Metaserver | None = None

    def leftovers(self) -> dict[str, int]:
        """Return everything that a finished request must have given back; all zero when idle."""
        return {
            "reservations": self.ledger.num_reservations,
            "peer_requests": self.pool.num_open,
            "render_calls": self.render_client.num_outstanding if self.render_client is not None else 0,
            "leases": self.gate.num_leases,
            "leased_tokens": self.gate.in_use_tokens,
            "waiting": self.gate.num_waiting,
            "requests_in_flight": self.metrics.num_requests_in_flight,
            "expected_calls": self.metaserver.num_expected if self.metaserver is not None else 0,
        }


@asynccontextmanager
async def coordinator(settings: Settings) -> AsyncIterator[Coordinator]:
    """Build everything inside the running loop; leaving the block closes every connection."""
    metrics = Metrics()
    pool = HttpPool(
        connect_seconds=settings.timeouts.connect_seconds,
        on_stale_retry=lambda origin: metrics.connection_retried(),
    )
    try:
        async with asyncio.TaskGroup() as tasks:
            built = _build(settings, metrics, pool)
            background = [tasks.create_task(_repeat(feed)) for feed in built.feeds]
            background += [tasks.create_task(service()) for service in built.services]
            yield built
            for task in background:
                task.cancel()
    finally:
        await pool.close()


async def _repeat(feed: Feed) -> None:
    while True:
        try:
            have_all_answered = await feed()
        except Exception as error:  # noqa: BLE001 - whatever a peer answers to a background question, serving goes on
            _log.exception("feed.failed", error_type=type(error).__name__)
            have_all_answered = True
        await asyncio.sleep(FEED_SECONDS if have_all_answered else RECHECK_SECONDS)


def _build(settings: Settings, metrics: Metrics, pool: HttpPool) -> Coordinator:
    timeouts = EngineTimeouts(
        first_token_seconds=settings.timeouts.first_token_seconds,
        inter_token_seconds=settings.timeouts.inter_token_seconds,
        request_seconds=settings.timeouts.request_seconds,
    )
    registry = InstanceRegistry(
        Instance(one.id, Role(one.role), one.url, one.data_parallel_size) for one in settings.instances
    )
    ledger = LoadLedger()
    scheduler = Scheduler(registry, ledger, BreakerBoard(BreakerRules(), time.monotonic))
    names = settings.model.served_model_name
    render_client = _render_client(settings, pool)
    vocabulary = load_vocabulary(settings.model.path)
    engines = TokenEngineClient(pool, timeouts, vocabulary.eos_token_id)
    metaserver = None
    chain = None
    feeds: tuple[Feed, ...] = ()
    services: tuple[Service, ...] = ()
    if render_client is not None:
        sidecar_facts = SidecarFactsFeed(render_client, names[0])
        engine_facts = EngineFactsFeed(registry, pool, names[0])
        probe = _parity_probe(settings, registry, pool, sidecar=sidecar_facts, engines=engine_facts, metrics=metrics)
        facts = PeerFactsFeed(
            sidecar_facts,
            engine_facts,
            lambda: probe.stops_token_chain,
            is_eos_known=vocabulary.eos_token_id is not None,
        )
        feeds = (facts.refresh, partial(render_client.probe_suspended, names[0]))
        services = (probe.run,)
        metaserver = _metaserver(settings, scheduler, engines)
        chain = _token_chain(
            settings,
            render_client,
            vocabulary,
            _rescheduler(settings, _topology(settings, scheduler, engines, metaserver, metrics), metrics),
            facts=facts,
            probe=probe,
        )
    gate = AdmissionGate(_flow_control(settings.flow_control))
    pipeline = Pipeline(
        chain,
        NativeRouter(scheduler, OpenAiEngineClient(pool, timeouts)),
        Admission(gate, settings.flow_control.expected_output_tokens),
        metrics,
        time.time,
    )
    limits = EdgeLimits(
        settings.api.max_body_bytes,
        settings.api.body_idle_timeout_seconds,
        settings.streaming.client_stall_seconds,
        RequestLimits(settings.limits.max_prompts, settings.limits.max_n),
        settings.flow_control.tenant_header.lower(),
    )
    edge = Edge(pipeline, metrics, RecentRequests(), _trace_headers, limits)
    readiness = ReadinessProbe(registry, pool, render_client.is_healthy if render_client is not None else None)
    started = int(time.time())
    cards = [ModelCard(name, started, settings.model.max_model_len) for name in names]
    return Coordinator(
        feeds=feeds,
        services=services,
        applications=(
            public_application(edge, readiness.reasons, cards),
            management_application(edge, readiness.reasons),
            *([metaserver_application(metaserver)] if metaserver is not None else []),
        ),
        metrics=metrics,
        ledger=ledger,
        pool=pool,
        render_client=render_client,
        metaserver=metaserver,
        gate=gate,
    )


def _topology(
    settings: Settings,
    scheduler: Scheduler,
    engines: TokenEngineClient,
    metaserver: Metaserver | None,
    metrics: Metrics,
) -> Topology:
    if settings.deploy_mode == "union":
        return UnionTopology(scheduler, engines)
    alone = UnionTopology(scheduler, engines, (Role.UNION, Role.DECODE))
    if metaserver is not None:
        may_be_alone = settings.trigger.allow_decode_alone
        return TriggerTopology(scheduler, engines, metaserver, alone if may_be_alone else None, metrics.topology_used)
    connector = NixlProfile() if settings.handoff.connector == "nixl" else SharedStorageProfile()
    may_be_alone = settings.handoff.allow_decode_alone
    return HandoffTopology(scheduler, engines, connector, alone if may_be_alone else None, metrics.topology_used)


def _flow_control(section: FlowControlSection) -> FlowControlSettings:
    return FlowControlSettings(
        max_inflight_tokens=section.max_inflight_tokens,
        max_queue_requests=section.max_queue_requests,
        max_queue_tokens=section.max_queue_tokens,
        queue_timeout_seconds=section.queue_timeout_seconds,
        oversized=Oversized(section.oversized),
        tenants={name: TenantSettings(**tenant.model_dump()) for name, tenant in section.tenants.items()},
        requests_per_minute=section.requests_per_minute,
        tokens_per_minute=section.tokens_per_minute,
    )


def _metaserver(settings: Settings, scheduler: Scheduler, engines: TokenEngineClient) -> Metaserver | None:
    if settings.deploy_mode != "trigger":
        return None
    trigger = settings.trigger
    return Metaserver(scheduler, engines, trigger.advertised_url or f"http://{trigger.host}:{trigger.port}")


def _rescheduler(settings: Settings, topology: Topology, metrics: Metrics) -> Rescheduler:
    relay = settings.relay
    rules = RetryRules(
        max_attempts=relay.max_attempts,
        max_recomputes=relay.max_recomputes,
        request_seconds=settings.timeouts.request_seconds,
        allow_approximate=relay.allow_approximate,
    )
    budget = RetryBudget(relay.retry_share, relay.retry_reserve)
    return Rescheduler(topology, rules, budget, random.random, metrics.retry_planned)


def _parity_probe(
    settings: Settings,
    registry: InstanceRegistry,
    pool: HttpPool,
    *,
    sidecar: SidecarFactsFeed,
    engines: EngineFactsFeed,
    metrics: Metrics,
) -> ParityProbe:
    timeout_seconds = settings.render_config.timeout_ms / 1000
    return ParityProbe(
        registry,
        sidecar,
        engines,
        lambda instance: VllmRenderClient(pool, (instance.url,), timeout_seconds),
        model=settings.model.served_model_name[0],
        ratio=settings.parity_probe.ratio,
        can_stop_token_chain=settings.parity_probe.stop_token_chain,
        draw=random.random,
        on_outcome=metrics.parity_probed,
    )


def _token_chain(
    settings: Settings,
    render_client: VllmRenderClient,
    vocabulary: Vocabulary,
    rescheduler: Rescheduler,
    *,
    facts: PeerFactsFeed,
    probe: ParityProbe,
) -> TokenChain:
    return TokenChain(
        tokenization=TokenizationService(
            render_client,
            LocalTokenizer(settings.model.path),
            vocabulary.size,
            settings.model.max_model_len if settings.context_budget_mode == "on" else None,
        ),
        derenderer=render_client,
        rescheduler=rescheduler,
        model=settings.model.served_model_name[0],
        session=SessionSettings(
            queue_chunks=settings.streaming.queue_chunks,
            max_gap_seconds=settings.streaming.max_gap_ms / 1000,
            marker_ids=vocabulary.marker_ids,
        ),
        facts=facts,
        probe=probe,
        streams_many_prompts=settings.deploy_mode != "trigger",
    )


def _render_client(settings: Settings, pool: HttpPool) -> VllmRenderClient | None:
    if not settings.render_config.enable:
        return None
    return VllmRenderClient(
        pool,
        settings.render_config.base_urls,
        settings.render_config.timeout_ms / 1000,
        settings.render_config.max_concurrent_calls,
    )


def _trace_headers(traceparent: str | None, tracestate: str | None) -> dict[str, str]:
    return child_trace_headers(traceparent, tracestate, secrets.token_bytes(8))


async def serve(settings: Settings) -> None:
    """Run the public and the management server until SIGTERM or SIGINT, then let requests finish.

    Raises:
        StartError: A port can't be used.
    """
    with ExitStack() as stack:
        listeners = [stack.enter_context(listen(host, port)) for host, port in _addresses(settings)]
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        _log.info(
            "coordinator.starting",
            addresses=[f"{host}:{port}" for host, port in _addresses(settings)],
            deploy_mode=settings.deploy_mode,
            render=settings.render_config.enable,
            num_instances=len(settings.instances),
        )
        async with coordinator(settings) as built:
            await run_servers(built, settings, listeners, stop)
        _log.info("coordinator.stopped")


def _addresses(settings: Settings) -> list[tuple[str, int]]:
    """Return where to listen: for clients, for operators, and with Trigger for decode engines."""
    addresses = [(settings.api.host, settings.api.port), (settings.management.host, settings.management.port)]
    if settings.deploy_mode == "trigger":
        addresses.append((settings.trigger.host, settings.trigger.port))
    return addresses


async def run_servers(
    built: Coordinator, settings: Settings, listeners: Sequence[socket.socket], stop: asyncio.Event
) -> None:
    """Serve every application on its listener until `stop` is set, then let requests finish within the grace time."""
    limits = ServerLimits(settings.api.keep_alive_timeout_seconds, settings.api.shutdown_grace_seconds)
    await run_applications(list(zip(built.applications, listeners, strict=True)), limits, stop)
