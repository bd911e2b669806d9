"""Prometheus metrics of one Coordinator, in a registry of its own."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from motor.coordinator.telemetry.stages import STAGES, StageClock

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)


class Metrics:
    """All metrics; built once by `app`. Children that the hot path needs are bound here, `labels()` is slow."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        self._requests = Counter(
            "motor_requests", "Requests by API, chain and HTTP status.", ["api", "chain", "status"], registry=registry
        )
        self.requests_in_flight = Gauge("motor_requests_in_flight", "Requests being served.", registry=registry)
        stages = Histogram(
            "motor_stage_seconds", "Seconds per request and stage.", ["stage"], buckets=_SECONDS, registry=registry
        )
        self._stages = {stage: stages.labels(stage) for stage in STAGES}
        self._prompt_tokens = Counter("motor_prompt_tokens", "Prompt tokens rendered.", registry=registry)
        self._completion_tokens = Counter("motor_completion_tokens", "Output tokens.", registry=registry)
        self._fallbacks = Counter(
            "motor_render_fallback", "Requests that left the token chain.", ["reason"], registry=registry
        )
        self._fallback_tokenizers = Counter(
            "motor_fallback_tokenizer",
            "Requests tokenized without Render: by the local tokenizer, or only estimated by length.",
            ["source"],
            registry=registry,
        )
        self._native_choices = Counter(
            "motor_native_chain", "Requests that the token chain can't serve faithfully.", ["reason"], registry=registry
        )
        self._faults = Counter("motor_faults", "Faults by domain and kind.", ["domain", "kind"], registry=registry)
        self._retries = Counter(
            "motor_attempt_plans", "What was decided after failed attempts.", ["plan"], registry=registry
        )
        self._topologies = Counter(
            "motor_topology", "Attempts by topology and why.", ["topology", "reason"], registry=registry
        )
        self._parity_probes = Counter(
            "motor_token_parity_probes",
            "Requests that an instance rendered too: match, mismatch or unanswered.",
            ["instance", "outcome"],
            registry=registry,
        )
        self._parity_mismatches = Counter(
            "motor_token_parity_mismatch",
            "Requests whose ids by the sidecar and by an instance differ.",
            ["instance"],
            registry=registry,
        )
        self._kv_query_faults = Counter(
            "motor_kv_query_unanswered", "Questions that a KV conductor left open.", ["reason"], registry=registry
        )
        self._kv_event_faults = Counter(
            "motor_kv_event_faults", "KV events that were lost or made no sense.", ["kind"], registry=registry
        )
        self._kv_blocks = Gauge("motor_kv_index_blocks", "Blocks in the embedded KV index.", registry=registry)
        self._disconnects = Counter("motor_client_disconnects", "Clients that left early.", registry=registry)
        self._connection_retries = Counter(
            "motor_connection_retries", "Requests repeated on a fresh connection.", registry=registry
        )
        self._num_in_flight = 0

    @property
    def num_requests_in_flight(self) -> int:
        """Requests being served."""
        return self._num_in_flight

    def request_began(self) -> None:
        """Count a request in."""
        self._num_in_flight += 1
        self.requests_in_flight.set(self._num_in_flight)

    def request_ended(self, api: str, chain: str, status: int, clock: StageClock) -> None:
        """Count a request out, with the time of its stages."""
        self._num_in_flight -= 1
        self.requests_in_flight.set(self._num_in_flight)
        self._requests.labels(api, chain, str(status)).inc()
        for stage, seconds in clock.seconds().items():
            self._stages[stage].observe(seconds)

    def prompt_tokens(self, num_tokens: int) -> None:
        """Count prompt tokens."""
        self._prompt_tokens.inc(num_tokens)

    def completion_tokens(self, num_tokens: int) -> None:
        """Count output tokens."""
        self._completion_tokens.inc(num_tokens)

    def render_fallback(self, reason: str) -> None:
        """Count a request that left the token chain."""
        self._fallbacks.labels(reason).inc()

    def tokenized_without_render(self, source: str) -> None:
        """Count a request by who told its prompt's length: `local`, or `length` for an estimate."""
        self._fallback_tokenizers.labels(source).inc()

    def native_chosen(self, reason: str) -> None:
        """Count a request that takes the native chain by choice."""
        self._native_choices.labels(reason).inc()

    def fault(self, domain: str, kind: str) -> None:
        """Count an error by its row of the fault table."""
        self._faults.labels(domain, kind).inc()

    def topology_used(self, topology: str, reason: str) -> None:
        """Count an attempt's topology."""
        self._topologies.labels(topology, reason).inc()

    def retry_planned(self, plan: str) -> None:
        """Count a decision after a failed attempt."""
        self._retries.labels(plan).inc()

    def parity_probed(self, instance: str, outcome: str) -> None:
        """Count a request that was rendered twice."""
        self._parity_probes.labels(instance, outcome).inc()
        if outcome == "mismatch":
            self._parity_mismatches.labels(instance).inc()

    def kv_query_unanswered(self, reason: str) -> None:
        """Count a question that a KV conductor didn't answer."""
        self._kv_query_faults.labels(reason).inc()

    def kv_events_fault(self, kind: str) -> None:
        """Count what was wrong with an engine's KV events; may be called from any thread."""
        self._kv_event_faults.labels(kind).inc()

    def watch_kv_index(self, num_blocks: Callable[[], int]) -> None:
        """Show how many blocks the embedded index holds."""
        self._kv_blocks.set_function(num_blocks)

    def client_disconnected(self) -> None:
        """Count a client that left before its answer's end."""
        self._disconnects.inc()

    def connection_retried(self) -> None:
        """Count a request that met a connection its peer had just closed."""
        self._connection_retries.inc()

    def render(self) -> tuple[bytes, str]:
        """Return the exposition and its content type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
