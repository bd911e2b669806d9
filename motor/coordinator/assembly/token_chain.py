"""Builds the token chain: the Render sidecar's client, what is known of peers, the probe of prompts."""

import random

from motor.coordinator.config import Settings
from motor.coordinator.instances.engine_facts import EngineFactsFeed
from motor.coordinator.instances.registry import InstanceRegistry
from motor.coordinator.pipeline import TokenChain
from motor.coordinator.render.local_tokenizer import LocalTokenizer
from motor.coordinator.render.parity_probe import ParityProbe
from motor.coordinator.render.peer_facts import PeerFactsFeed
from motor.coordinator.render.sidecar_facts import SidecarFactsFeed
from motor.coordinator.render.streaming_response import SessionSettings
from motor.coordinator.render.tokenization_service import TokenizationService
from motor.coordinator.render.vllm_render_client import VllmRenderClient
from motor.coordinator.render.vocabulary import Vocabulary
from motor.coordinator.router.rescheduler import Rescheduler
from motor.coordinator.telemetry.metrics import Metrics
from motor.coordinator.transport.http_pool import HttpPool


def build_render_client(settings: Settings, pool: HttpPool) -> VllmRenderClient | None:
    """Build the sidecar's client, if Render is on."""
    if not settings.render_config.enable:
        return None
    return VllmRenderClient(
        pool,
        settings.render_config.base_urls,
        settings.render_config.timeout_ms / 1000,
        settings.render_config.max_concurrent_calls,
    )


def build_parity_probe(
    settings: Settings,
    registry: InstanceRegistry,
    pool: HttpPool,
    *,
    sidecar: SidecarFactsFeed,
    engines: EngineFactsFeed,
    metrics: Metrics,
) -> ParityProbe:
    """Build what compares the sidecar's prompts with the engines'."""
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


def build_token_chain(
    settings: Settings,
    render_client: VllmRenderClient,
    vocabulary: Vocabulary,
    rescheduler: Rescheduler,
    *,
    facts: PeerFactsFeed,
    probe: ParityProbe,
) -> TokenChain:
    """Put the stages of the token chain together."""
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
