"""What a simulated Render sidecar is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RenderSettings:
    """A simulated sidecar's constants.

    Attributes:
        served_model_name: The name in `/v1/models`.
        version: What `/version` tells.
        max_model_len: The context in tokens; must equal the engines'.
        has_parsers: Split reasoning and tool calls, as with `--reasoning-parser qwen3 --tool-call-parser hermes`.
        delay_seconds: Time that every render and derender call takes beside its work.
        keep_alive_seconds: How long an idle connection is kept.
    """

    served_model_name: str = "sim"
    version: str = "0.32.0"
    max_model_len: int = 4096
    has_parsers: bool = True
    delay_seconds: float = 0.0
    keep_alive_seconds: float = 5.0
