"""Builds the edge: admission, limits of requests, the applications."""

import secrets
import time

from motor.coordinator.api.application import ModelCard
from motor.coordinator.api.endpoints import Edge, EdgeLimits
from motor.coordinator.api.request_limits import RequestLimits
from motor.coordinator.config import Settings
from motor.coordinator.config_sections import FlowControlSection
from motor.coordinator.flow_control.settings import FlowControlSettings, Oversized, TenantSettings
from motor.coordinator.pipeline import Pipeline
from motor.coordinator.telemetry.metrics import Metrics
from motor.coordinator.telemetry.recent_requests import RecentRequests
from motor.coordinator.telemetry.trace import child_trace_headers


def flow_control_settings(section: FlowControlSection) -> FlowControlSettings:
    """Return flow control's own form of its section."""
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


def build_edge(settings: Settings, pipeline: Pipeline, metrics: Metrics) -> Edge:
    """Build what stands between HTTP and the pipeline."""
    limits = EdgeLimits(
        settings.api.max_body_bytes,
        settings.api.body_idle_timeout_seconds,
        settings.streaming.client_stall_seconds,
        RequestLimits(settings.limits.max_prompts, settings.limits.max_n),
        settings.flow_control.tenant_header.lower(),
    )
    return Edge(pipeline, metrics, RecentRequests(), _trace_headers, limits)


def model_cards(settings: Settings) -> list[ModelCard]:
    """Return what `/v1/models` lists: the model under each of its names."""
    started = int(time.time())
    return [ModelCard(name, started, settings.model.max_model_len) for name in settings.model.served_model_name]


def _trace_headers(traceparent: str | None, tracestate: str | None) -> dict[str, str]:
    return child_trace_headers(traceparent, tracestate, secrets.token_bytes(8))
