"""The exposition that Prometheus reads."""

from prometheus_client.parser import text_string_to_metric_families

from motor.coordinator.telemetry.metrics import Metrics
from motor.coordinator.telemetry.stages import STAGES, StageClock


def samples_of(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample by name and labels."""
    payload, content_type = metrics.render()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(payload.decode())
        for sample in family.samples
    }


def test_a_request_is_counted_in_and_out() -> None:
    metrics = Metrics()
    clock = StageClock(lambda: 0.0)
    for stage in STAGES:
        clock.add(stage, 0.5)
    metrics.request_began()
    metrics.request_began()
    assert metrics.num_requests_in_flight == 2
    metrics.request_ended("chat", "token", 200, clock)
    samples = samples_of(metrics)
    assert samples["motor_requests_in_flight", ()] == metrics.num_requests_in_flight == 1
    labels = (("api", "chat"), ("chain", "token"), ("status", "200"))
    assert samples["motor_requests_total", labels] == 1
    for stage in STAGES:
        assert samples["motor_stage_seconds_sum", (("stage", stage),)] == 0.5
        assert samples["motor_stage_seconds_count", (("stage", stage),)] == 1


def test_every_event_has_its_counter() -> None:
    metrics = Metrics()
    metrics.prompt_tokens(7)
    metrics.completion_tokens(5)
    metrics.render_fallback("timeout")
    metrics.native_chosen("beam_search")
    metrics.fault("engine", "connect")
    metrics.client_disconnected()
    metrics.connection_retried()
    samples = samples_of(metrics)
    assert samples["motor_prompt_tokens_total", ()] == 7
    assert samples["motor_completion_tokens_total", ()] == 5
    assert samples["motor_render_fallback_total", (("reason", "timeout"),)] == 1
    assert samples["motor_native_chain_total", (("reason", "beam_search"),)] == 1
    assert samples["motor_faults_total", (("domain", "engine"), ("kind", "connect"))] == 1
    assert samples["motor_client_disconnects_total", ()] == 1
    assert samples["motor_connection_retries_total", ()] == 1


def test_two_coordinators_share_no_counter() -> None:
    one, other = Metrics(), Metrics()
    one.prompt_tokens(7)
    assert samples_of(other)["motor_prompt_tokens_total", ()] == 0
