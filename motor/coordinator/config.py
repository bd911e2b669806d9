"""The settings as a whole. Reading and judging a file is `config_file`'s work (RFC: 配置)."""

from typing import Literal

from pydantic import Field, model_validator

from motor.coordinator.config_sections import (
    ApiSection,
    FlowControlSection,
    HandoffSection,
    InferenceWorkersSection,
    InstanceSection,
    KvConductorSection,
    LimitsSection,
    LoggingSection,
    ManagementSection,
    ModelSection,
    ParityProbeSection,
    RelaySection,
    RenderConfigSection,
    SchedulingSection,
    StreamingSection,
    TimeoutsSection,
    TriggerSection,
)
from motor.coordinator.config_types import Section


class Settings(Section):
    """The whole configuration."""

    api: ApiSection = Field(ApiSection(), description="The server that clients reach.")
    limits: LimitsSection = Field(LimitsSection(), description="How much one request may ask for.")
    management: ManagementSection = Field(ManagementSection(), description="The server that operators reach.")
    model: ModelSection = Field(description="The model.")
    deploy_mode: Literal["union", "handoff", "trigger"] = Field("union", description="The topology.")
    context_budget_mode: Literal["on", "off"] = Field("off", description="Clip `max_tokens` to the context.")
    render_config: RenderConfigSection = Field(RenderConfigSection(), description="The Render sidecar.")
    inference_workers_config: InferenceWorkersSection = Field(
        InferenceWorkersSection(), description="Processes that serve requests."
    )
    instances: tuple[InstanceSection, ...] = Field((), description="The engines.")
    scheduling: SchedulingSection = Field(SchedulingSection(), description="Which engine gets a prompt.")
    kv_conductor: KvConductorSection = Field(KvConductorSection(), description="Who knows what engines have cached.")
    timeouts: TimeoutsSection = Field(TimeoutsSection(), description="Limits of engine calls.")
    handoff: HandoffSection = Field(HandoffSection(), description="The Handoff topology.")
    trigger: TriggerSection = Field(TriggerSection(), description="The Trigger topology.")
    relay: RelaySection = Field(RelaySection(), description="What happens after an engine's failure.")
    flow_control: FlowControlSection = Field(FlowControlSection(), description="How many tokens may be in flight.")
    streaming: StreamingSection = Field(StreamingSection(), description="Streamed answers.")
    parity_probe: ParityProbeSection = Field(ParityProbeSection(), description="Checks of rendered prompts.")
    logging: LoggingSection = Field(LoggingSection(), description="Logs.")

    @model_validator(mode="before")
    @classmethod
    def _renderer_workers_follow(cls, values: object) -> object:
        """By default the sidecar has as many workers as the deployment has inference workers."""
        if not isinstance(values, dict):
            return values
        render = values.get("render_config", {})
        workers = values.get("inference_workers_config")
        if isinstance(render, dict) and isinstance(workers, dict) and str(workers.get("num_workers")).isdigit():
            return {**values, "render_config": {"renderer_num_workers": workers["num_workers"], **render}}
        return values

    @model_validator(mode="after")
    def _context_is_known(self) -> "Settings":
        if self.context_budget_mode == "on" and self.model.max_model_len is None:
            raise ValueError("model.max_model_len: missing; context_budget_mode on needs it")
        return self

    @model_validator(mode="after")
    def _conductor_is_known(self) -> "Settings":
        if self.kv_conductor.mode == "external" and self.kv_conductor.url is None:
            raise ValueError("kv_conductor.url: missing; kv_conductor.mode external needs it")
        return self

    @model_validator(mode="after")
    def _instances_fit(self) -> "Settings":
        ids = [instance.id for instance in self.instances]
        doubled = sorted({one for one in ids if ids.count(one) > 1})
        if doubled:
            raise ValueError(f"instances: expected unique ids, but {', '.join(doubled)} is there more than once")
        needed = ("union",) if self.deploy_mode == "union" else ("prefill", "decode")
        roles = {instance.role for instance in self.instances}
        missing = [role for role in needed if role not in roles]
        if roles and missing:
            raise ValueError(
                f"instances: deploy_mode {self.deploy_mode} needs an instance of role {' and '.join(missing)}"
            )
        return self
