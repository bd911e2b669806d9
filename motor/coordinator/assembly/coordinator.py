"""Builds every object once from the settings."""

import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial

from motor.coordinator.api.application import management_application, public_application
from motor.coordinator.api.metaserver import metaserver_application
from motor.coordinator.api.server import Application
from motor.coordinator.assembly.edge import build_edge, flow_control_settings, model_cards
from motor.coordinator.assembly.routing import build_metaserver, build_rescheduler, build_topology, engine_timeouts
from motor.coordinator.assembly.scheduling import build_scheduling
from motor.coordinator.assembly.token_chain import build_parity_probe, build_render_client, build_token_chain
from motor.coordinator.config import Settings
from motor.coordinator.engine.openai_engine_client import OpenAiEngineClient
from motor.coordinator.engine.token_engine_client import TokenEngineClient
from motor.coordinator.flow_control.admission import Admission
from motor.coordinator.flow_control.gate import AdmissionGate
from motor.coordinator.instances.engine_facts import EngineFactsFeed
from motor.coordinator.instances.readiness import ReadinessProbe
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.pipeline import Pipeline, TokenChain
from motor.coordinator.render.peer_facts import PeerFactsFeed
from motor.coordinator.render.sidecar_facts import SidecarFactsFeed
from motor.coordinator.render.vllm_render_client import VllmRenderClient
from motor.coordinator.render.vocabulary import load_vocabulary
from motor.coordinator.router.native import NativeRouter, no_instances, shown_instances
from motor.coordinator.router.trigger import Metaserver
from motor.coordinator.scheduling.load_ledger import LoadLedger
from motor.coordinator.scheduling.scheduler import Scheduler
from motor.coordinator.telemetry.metrics import Metrics
from motor.coordinator.transport.http_pool import HttpPool

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


def build(settings: Settings, metrics: Metrics, pool: HttpPool) -> Coordinator:
    """Build a Coordinator that isn't running yet; needs a running loop."""
    scheduling = build_scheduling(settings, metrics, pool)
    registry, scheduler = scheduling.registry, scheduling.scheduler
    render_client = build_render_client(settings, pool)
    tokens = _TokenPath()
    if render_client is not None:
        tokens = _build_token_path(settings, metrics, pool, render_client, registry=registry, scheduler=scheduler)
    gate = AdmissionGate(flow_control_settings(settings.flow_control))
    shown = shown_instances if settings.scheduling.instance_header else no_instances
    pipeline = Pipeline(
        tokens.chain,
        NativeRouter(scheduler, OpenAiEngineClient(pool, engine_timeouts(settings)), shown),
        Admission(gate, settings.flow_control.expected_output_tokens),
        metrics,
        shown=shown,
        wall_clock=time.time,
    )
    edge = build_edge(settings, pipeline, metrics)
    readiness = ReadinessProbe(registry, pool, render_client.is_healthy if render_client is not None else None)
    return Coordinator(
        feeds=tokens.feeds,
        services=(*scheduling.services, *tokens.services),
        applications=(
            public_application(edge, readiness.reasons, model_cards(settings)),
            management_application(edge, readiness.reasons, scheduling.decisions.of),
            *([metaserver_application(tokens.metaserver)] if tokens.metaserver is not None else []),
        ),
        metrics=metrics,
        ledger=scheduling.ledger,
        pool=pool,
        render_client=render_client,
        metaserver=tokens.metaserver,
        gate=gate,
    )


@dataclass(frozen=True, slots=True)
class _TokenPath:
    """What there is only with Render."""

    chain: TokenChain | None = None
    metaserver: Metaserver | None = None
    feeds: tuple[Feed, ...] = ()
    services: tuple[Service, ...] = ()


def _build_token_path(
    settings: Settings,
    metrics: Metrics,
    pool: HttpPool,
    render_client: VllmRenderClient,
    *,
    registry: InstanceRegistry,
    scheduler: Scheduler,
) -> _TokenPath:
    name = settings.model.served_model_name[0]
    vocabulary = load_vocabulary(settings.model.path)
    engines = TokenEngineClient(pool, engine_timeouts(settings), vocabulary.eos_token_id)
    sidecar_facts = SidecarFactsFeed(render_client, name)
    engine_facts = EngineFactsFeed(registry, pool, name)
    probe = build_parity_probe(settings, registry, pool, sidecar=sidecar_facts, engines=engine_facts, metrics=metrics)
    facts = PeerFactsFeed(
        sidecar_facts,
        engine_facts,
        lambda: probe.stops_token_chain,
        is_eos_known=vocabulary.eos_token_id is not None,
    )
    metaserver = build_metaserver(settings, scheduler, engines)
    topology = build_topology(settings, scheduler, engines, metaserver, metrics)
    return _TokenPath(
        chain=build_token_chain(
            settings,
            render_client,
            vocabulary,
            build_rescheduler(settings, topology, metrics),
            facts=facts,
            probe=probe,
        ),
        metaserver=metaserver,
        feeds=(facts.refresh, partial(render_client.probe_suspended, name)),
        services=(probe.run,),
    )
