"""The one place where a `TokenizedRequest` becomes an `EngineRequest`, and semantic ids become physical ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import msgspec

from motor.coordinator.domain.errors import EngineAborted, EngineBroken
from motor.coordinator.domain.generation import GenerateResponse
from motor.coordinator.domain.tokens import PhysicalTokenIds, SemanticTokenIds
from motor.coordinator.engine.token_engine_client import EngineRequest
from motor.coordinator.render.models import TokenizedRequest
from motor.coordinator.scheduling.demand import Demand
from motor.coordinator.wire.openai import encode_json

_DELTA, _FINAL_ONLY = 1, 2
_NEVER_FORWARDED = frozenset({"kv_transfer_params", "ec_transfer_params", "content_parts"})
"""Dispatch fields are ours to set: a client's own would reach into an engine's KV cache."""


class LegKind(StrEnum):
    """Which part of a request an engine does."""

    PREFILL = "prefill"
    DECODE = "decode"
    UNION = "union"
    RELEASE = "release"


@dataclass(frozen=True, slots=True)
class Leg:
    """One engine call of one attempt.

    Attributes:
        kind: What the engine is asked for.
        attempt: 0 for the first.
        is_stream: Whether chunks are wanted.
        kv_transfer_params: What the connector needs on this leg.
        data_parallel_rank: Which rank must take it; `None` lets the engine choose.
        forward_headers: Trace and session headers of the client's request.
    """

    kind: LegKind
    attempt: int = 0
    is_stream: bool = False
    kv_transfer_params: Mapping[str, Any] | None = None
    data_parallel_rank: int | None = None
    forward_headers: Mapping[str, str] = field(default_factory=dict)


def engine_request_id(base: str, prompt_index: int, leg: Leg) -> str:
    """Return an id that no other prompt, attempt or leg of any request has."""
    return f"{base}-p{prompt_index}-a{leg.attempt}-{leg.kind}"


def engine_request(base_request_id: str, request: TokenizedRequest, leg: Leg) -> EngineRequest:
    """Return the wire form of one leg.

    Args:
        base_request_id: The public id of the client's request.
        request: The prompt; its physical ids are sent.
        leg: Which engine call this is.
    """
    request_id = engine_request_id(base_request_id, request.prompt_index, leg)
    params = dict(request.sampling_params)
    # vLLM up to 0.28 takes the output kind as rendered, later ones set it from `stream`.
    params["output_kind"] = _DELTA if leg.is_stream else _FINAL_ONLY
    body: dict[str, Any] = {name: value for name, value in request.metadata.items() if name not in _NEVER_FORWARDED}
    params["extra_args"] = _extra_args(params.get("extra_args"), leg)
    if params["extra_args"] is None:
        del params["extra_args"]
    if leg.kv_transfer_params is not None:
        body["kv_transfer_params"] = leg.kv_transfer_params
    body.update(
        request_id=request_id,
        token_ids=physical_ids(request),
        sampling_params=params,
        stream=leg.is_stream,
    )
    if leg.is_stream:
        # Always asked for: cached-token details come on the usage chunk only.
        body["stream_options"] = {"include_usage": True}
    headers = {**leg.forward_headers, **rank_header(leg.data_parallel_rank)}
    return EngineRequest(request_id, encode_json(body), request.num_choices, headers)


def rank_header(data_parallel_rank: int | None) -> dict[str, str]:
    """Return the header by which vLLM is told the rank that must serve; none if it may choose."""
    return {} if data_parallel_rank is None else {"X-data-parallel-rank": str(data_parallel_rank)}


_NOT_FOR_PREFILL = frozenset(
    {
        "n",
        "logprobs",
        "prompt_logprobs",
        "logprob_token_ids",
        "structured_outputs",
        "include_stop_str_in_output",
        "output_text_buffer_length",
        "stream_interval",
    }
)


def prefill_request(request: TokenizedRequest) -> TokenizedRequest:
    """Return the request of a leg whose one token is thrown away.

    `min_tokens` 1 masks the ids that would end it: some connectors hand their blocks over for `length` only.
    """
    params = {name: value for name, value in request.sampling_params.items() if name not in _NOT_FOR_PREFILL}
    params.update(max_tokens=1, min_tokens=1, stop=[], bad_words=[], detokenize=False)
    return replace(request, sampling_params=params)


def physical_ids(request: TokenizedRequest) -> PhysicalTokenIds:
    """Return what the engine must see; without obfuscation the numbers are the semantic ones."""
    return request.physical_ids if request.physical_ids is not None else PhysicalTokenIds(request.semantic_ids)


def demand_of(request_id: str, request: TokenizedRequest) -> Demand:
    """Return what the scheduler must know of a prompt.

    Args:
        request_id: The client's request.
        request: The prompt; caches are asked for its physical ids.
    """
    return Demand(
        request.num_prompt_tokens,
        request.max_tokens * request.num_choices,
        physical_ids(request),
        model=_text(request.metadata, "model"),
        cache_salt=_text(request.metadata, "cache_salt"),
        request_id=request_id,
    )


def native_demand(request_id: str, num_prompt_tokens: int, prompts: Sequence[SemanticTokenIds] = ()) -> Demand:
    """Return what the scheduler must know of a request that an engine serves by itself.

    Args:
        request_id: The client's request.
        num_prompt_tokens: Of all prompts; an estimate, or 0, where nobody counted.
        prompts: Their ids, if anybody knows them; only a single prompt's can be looked for in caches.
    """
    token_ids = PhysicalTokenIds(prompts[0]) if len(prompts) == 1 else None
    return Demand(num_prompt_tokens, token_ids=token_ids, request_id=request_id)


def validated(response: GenerateResponse, request: TokenizedRequest) -> GenerateResponse:
    """Return the response if it answers the request.

    Raises:
        EngineBroken: Choices are missing or doubled, or one has no ids.
        EngineAborted: The engine has given one up, though nobody asked it to.
    """
    indices = sorted(choice.index for choice in response.choices)
    if indices != list(range(request.num_choices)):
        raise EngineBroken(f"the engine answered {len(indices)} choices instead of {request.num_choices}")
    if any(choice.token_ids is None for choice in response.choices):
        raise EngineBroken("the engine answered a choice without token ids")
    if any(choice.finish_reason == "abort" for choice in response.choices):
        raise EngineAborted("the engine aborted the request")
    response.choices.sort(key=lambda choice: choice.index)
    return response


def _extra_args(rendered: Any, leg: Leg) -> dict[str, Any] | None:
    """vLLM up to 0.28 reads KV parameters here only, 0.30 and later also at top level."""
    kept = {k: v for k, v in rendered.items() if k not in _NEVER_FORWARDED} if isinstance(rendered, dict) else {}
    if leg.kv_transfer_params is not None:
        kept["kv_transfer_params"] = dict(leg.kv_transfer_params)
    return kept or None


def _text(metadata: Mapping[str, msgspec.Raw], name: str) -> str | None:
    """Return a member of Render's answer if it is a string."""
    raw = metadata.get(name)
    value = None if raw is None else msgspec.json.decode(raw)
    return value if isinstance(value, str) else None
