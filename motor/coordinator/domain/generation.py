"""What a token engine answers: the wire structs of `POST /inference/v1/generate`.

Source: `GenerateTokensResponse` and `GenerateTokensStreamResponse` of vLLM 0.27.1 to 0.32. Fields that an engine
does not send are their defaults; fields that we do not know are ignored. Large members that we only carry stay
undecoded (`msgspec.Raw`).
"""

from typing import Any

import msgspec


class GenerateChoice(msgspec.Struct, kw_only=True, omit_defaults=False):
    """One choice of one answer or chunk; `token_ids` are the new ids of a chunk, all ids of a complete answer."""

    index: int
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: Any = None
    routed_experts: Any = None
    sampling_mask: Any = None
    weight_versions: Any = None


class GenerateUsage(msgspec.Struct, kw_only=True):
    """Token counts as the engine saw them; the details ride along undecoded."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    total_tokens: int = 0
    prompt_tokens_details: dict[str, Any] | None = None


class GenerateChunk(msgspec.Struct, kw_only=True):
    """One event of a generate stream: one choice, or none on the usage chunk."""

    request_id: str = ""
    choices: list[GenerateChoice] = []
    usage: GenerateUsage | None = None
    prompt_token_ids: list[int] | None = None
    error: Any = None


class GenerateResponse(msgspec.Struct, kw_only=True):
    """A complete answer."""

    request_id: str = ""
    model: str | None = None
    created: int = 0
    choices: list[GenerateChoice] = []
    usage: GenerateUsage | None = None
    prompt_logprobs: Any = None
    prompt_token_ids: list[int] | None = None
    metrics: Any = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
