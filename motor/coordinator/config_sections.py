"""The sections of the configuration: keys, defaults, bounds, meaning (RFC: 配置)."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from motor.coordinator.config_types import Endpoint, InstanceId, Port, Seconds, Section, Url, listed

_ZMQ_ADDRESS = r"^(tcp|ipc|inproc)://\S+$"


class ApiSection(Section):
    """The server that clients reach."""

    host: str = Field("0.0.0.0", min_length=1, description="Address to listen on.")
    port: Port = Field(1025, description="TCP port.")
    max_body_bytes: int = Field(64 * 1024 * 1024, gt=0, description="Largest request body; a larger one is a 413.")
    body_idle_timeout_seconds: Seconds = Field(
        60, description="A client that sends nothing of its request's body for so long is answered with 408."
    )
    keep_alive_timeout_seconds: int = Field(75, gt=0, description="How long an idle client connection is kept.")
    shutdown_grace_seconds: int = Field(30, ge=0, description="How long requests may go on after SIGTERM.")


class LimitsSection(Section):
    """How much one request may ask for."""

    max_prompts: int = Field(1024, gt=0, description="Prompts of a Completions request.")
    max_n: int = Field(1024, gt=0, description="Choices for each prompt.")


class ManagementSection(Section):
    """The server that operators reach."""

    host: str = Field("127.0.0.1", min_length=1, description="Address to listen on.")
    port: Port = Field(1026, description="TCP port.")


class ModelSection(Section):
    """The model; sidecar and engines must serve the same one."""

    served_model_name: Annotated[tuple[str, ...], BeforeValidator(listed), Field(min_length=1)] = Field(
        description="The name that clients use; a list adds aliases, the first name is the one in answers."
    )
    path: Path | None = Field(None, description="Folder of the model's tokenizer, for the local fallback.")
    max_model_len: int | None = Field(None, gt=0, description="Context length in tokens, shown by `/v1/models`.")


class RenderConfigSection(Section):
    """The Render sidecar."""

    enable: bool = Field(False, description="Use the token chain; off, every request takes the native chain.")
    image_name: str = Field("", description="Container image of the sidecar; empty reuses the service's own image.")
    endpoint: Endpoint = Field(Endpoint(), description="Where the sidecar listens.")
    endpoints: tuple[Endpoint, ...] = Field((), description="Several sidecar processes; replaces `endpoint`.")
    max_concurrent_calls: int = Field(
        16, gt=0, description="Calls under way per sidecar process; more wait their turn."
    )
    timeout_ms: int = Field(5000, gt=0, description="Limit of each Render or Derender call, of each chunk's too.")
    renderer_num_workers: int = Field(
        4,
        gt=0,
        description="Worker threads of a sidecar that `motor up` starts; follows the inference workers if unset.",
    )

    @property
    def base_urls(self) -> tuple[str, ...]:
        """Every sidecar process."""
        return tuple(endpoint.base_url for endpoint in self.endpoints or (self.endpoint,))


class InferenceWorkersSection(Section):
    """How many processes serve requests."""

    num_workers: int = Field(4, gt=0, description="Inference workers of the deployment; sizes the sidecar's workers.")


class KvEventsSection(Section):
    """Where an engine publishes its KV events; a data-parallel rank is added to the port, as vLLM does."""

    address: str = Field(pattern=_ZMQ_ADDRESS, description="ZMQ address of the events, as seen from here.")
    replay_address: str | None = Field(
        None, pattern=_ZMQ_ADDRESS, description="ZMQ address that repeats lost events; none: they are lost."
    )
    topic: str = Field("", description="The engine's `topic`.")
    is_bound_here: bool = Field(False, description="Listen at `address`; the engine connects.")


class InstanceSection(Section):
    """One engine instance."""

    id: InstanceId = Field(description="Unique name, shown in logs and metrics.")
    role: Literal["prefill", "decode", "union"] = Field(description="Which leg it serves.")
    url: Url = Field(description="Base URL; a path prefix is kept.")
    data_parallel_size: int = Field(1, gt=0, description="Data-parallel ranks behind the URL.")
    kv_events: KvEventsSection | None = Field(None, description="Its KV events, for `kv_conductor`.")


class SchedulingSection(Section):
    """Which engine gets a prompt."""

    policy: Literal["round_robin", "load_balance", "kv_cache_affinity"] = Field(
        "load_balance", description="By turns, by the work that waits, or by that and the cached prefix."
    )
    held_token_cost: float = Field(
        0.1, ge=0, allow_inf_nan=False, description="What a running request's cached token costs, in computed tokens."
    )
    remembered_requests: int = Field(256, ge=0, description="Requests whose choices `/debug/schedule` explains.")
    instance_header: bool = Field(False, description="Name the instances in the `x-motor-instance` response header.")


class KvConductorSection(Section):
    """Who knows which engine holds which prefix; asked with `kv_cache_affinity`."""

    mode: Literal["embedded", "external"] = Field(
        "embedded", description="An index here, fed by KV events, or a conductor of its own."
    )
    max_blocks: int = Field(2_000_000, gt=0, description="Embedded: blocks kept, 400 bytes each.")
    speculation_seconds: float = Field(
        2.0, ge=0, allow_inf_nan=False, description="Embedded: how long a prompt just sent counts as cached."
    )
    url: Url | None = Field(None, description="External: the conductor.")
    block_size: int = Field(16, gt=0, description="External: tokens a block, as the engines have it.")
    tenant_id: str | None = Field(None, description="External: whose index to use.")
    timeout_ms: int = Field(200, gt=0, description="External: limit of a query; no answer is no match.")


class TimeoutsSection(Section):
    """Limits of engine calls."""

    connect_seconds: Seconds = Field(5, description="One TCP connect.")
    first_token_seconds: Seconds = Field(600, description="From the request to the first chunk.")
    inter_token_seconds: Seconds = Field(120, description="From chunk to chunk.")
    request_seconds: Seconds = Field(3600, description="A complete answer.")


class HandoffSection(Section):
    """The Handoff topology."""

    connector: Literal["nixl", "shared_storage"] = Field("nixl", description="How the KV cache gets to decode.")
    allow_decode_alone: bool = Field(
        True, description="Let decode instances compute prompts too where prefill can't: none usable, `n` over 1."
    )


class TriggerSection(Section):
    """The Trigger topology: the metaserver that decode engines call."""

    host: str = Field("127.0.0.1", min_length=1, description="Address that the metaserver listens on.")
    port: Port = Field(12000, description="TCP port of the metaserver.")
    advertised_url: str = Field(
        "", description="Base URL under which decode engines reach it; empty: from host and port."
    )
    allow_decode_alone: bool = Field(
        True, description="Let decode instances compute prompts too where prefill can't: none usable, `n` over 1."
    )


class RelaySection(Section):
    """What happens after an engine's failure."""

    max_attempts: int = Field(5, ge=1, description="Attempts per prompt, the first included.")
    max_recomputes: int = Field(3, ge=0, description="How often an engine may run out of KV blocks during one answer.")
    retry_share: float = Field(0.2, ge=0, le=1, description="Retries per request that the deployment may make.")
    retry_reserve: int = Field(20, ge=0, description="Retries that may be made at once, beyond the share.")
    allow_approximate: bool = Field(
        True, description="Continue answers whose rest may differ: seeds, penalties, bad words, thinking budgets."
    )


class TenantSection(Section):
    """One tenant."""

    weight: float = Field(1.0, gt=0, allow_inf_nan=False, description="Share of admitted tokens while others wait too.")
    max_inflight_tokens: int | None = Field(None, gt=0, description="Its own budget inside the deployment's.")
    requests_per_minute: int | None = Field(None, gt=0, description="Its own rate.")
    tokens_per_minute: int | None = Field(None, gt=0, description="Its own rate.")


class FlowControlSection(Section):
    """How many tokens may be in flight."""

    max_inflight_tokens: int | None = Field(
        None, gt=0, description="Prompt and expected output tokens; none: no bound."
    )
    expected_output_tokens: int = Field(
        512, gt=0, description="Output expected of a choice whose `max_tokens` is more."
    )
    max_queue_requests: int = Field(1024, ge=0, description="Requests that may wait.")
    max_queue_tokens: int | None = Field(None, gt=0, description="Tokens that may wait.")
    queue_timeout_seconds: Seconds = Field(30, description="How long a request may wait.")
    oversized: Literal["alone", "refuse"] = Field(
        "alone", description="What becomes of a request over the whole budget."
    )
    tenant_header: str = Field("", description="Header that names the tenant; empty: all are one.")
    tenants: dict[str, TenantSection] = Field({}, description="Tenants with settings of their own, by name.")
    requests_per_minute: int | None = Field(None, gt=0, description="Rate of every tenant.")
    tokens_per_minute: int | None = Field(None, gt=0, description="Rate of every tenant, prompt and output tokens.")


class StreamingSection(Section):
    """Streamed answers."""

    queue_chunks: int = Field(64, gt=0, description="Engine chunks that a choice may have waiting for a slow client.")
    max_gap_ms: int = Field(150, gt=0, description="Bound on the gap between visible chunks that batching may cause.")
    client_stall_seconds: Seconds = Field(60, description="A client that reads nothing for so long is closed.")


class ParityProbeSection(Section):
    """Whether engines make the same prompts as the sidecar."""

    ratio: float = Field(0.0, ge=0, le=1, description="Share of requests that an engine renders too, to compare.")
    stop_token_chain: bool = Field(
        False, description="After a difference, take the native chain until the sidecar or that engine has changed."
    )


class LoggingSection(Section):
    """Logs on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severity.")
    format: Literal["json", "console"] = Field("json", description="One JSON object a line, or for reading.")
