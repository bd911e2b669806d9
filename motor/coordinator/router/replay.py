"""What to do after an engine's failure: a pure decision from what the client has and what it asked for.

RFC: 流式 replay 与重调度. Resuming continues from the committed ids: they are appended to the prompt, and the budget
is reduced by their number. It is refused where the continuation couldn't be right.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec

from motor.coordinator.domain.tokens import SemanticTokenIds
from motor.coordinator.render.models import StreamProgress, TokenizedRequest


@dataclass(frozen=True, slots=True)
class Restart:
    """Nothing of this prompt is visible: run it again from the beginning."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on after the committed ids.

    Attributes:
        request: The prompt with the committed ids appended and the budgets reduced; for every leg of the attempt.
    """

    request: TokenizedRequest


@dataclass(frozen=True, slots=True)
class FinishByLength:
    """All tokens that were asked for are committed already: only the finish reason is missing."""


class Refusal(StrEnum):
    """Why no further attempt is made."""

    ATTEMPTS = "attempts_exhausted"
    BUDGET = "retry_budget_exhausted"
    DEADLINE = "deadline"
    STRUCTURED = "structured_output"
    MANY_CHOICES = "several_choices"
    MANY_PROMPTS = "several_prompts"
    APPROXIMATE = "approximate"


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The fault becomes the client's error."""

    refusal: Refusal


RetryPlan: TypeAlias = Restart | Resume | FinishByLength | GiveUp

_APPROXIMATED_PARAMS = ("presence_penalty", "frequency_penalty", "bad_words", "thinking_token_budget")
"""An engine counts the committed ids as prompt, where these don't look for what has been generated."""

_DEFAULT_TEMPERATURE = 1.0
"""vLLM's, which leaves members out that have their defaults."""


def plan_retry(request: TokenizedRequest, progress: StreamProgress, *, allow_approximate: bool) -> RetryPlan:
    """Decide how the next attempt at a prompt begins.

    Args:
        request: The prompt as it was rendered.
        progress: What the client has.
        allow_approximate: Whether to resume where the continuation may differ from an undisturbed one: sampling with
            a seed, penalties over the output, bad words across the cut, a budget for thinking.
    """
    if not progress.is_request_visible:
        return Restart()
    refusal = _refusal(request, progress, allow_approximate=allow_approximate)
    if refusal is not None:
        return GiveUp(refusal)
    num_committed = len(progress.committed_ids)
    if num_committed >= request.max_tokens:
        return FinishByLength()
    return Resume(_continued(request, progress))


def _refusal(request: TokenizedRequest, progress: StreamProgress, *, allow_approximate: bool) -> Refusal | None:
    if progress.num_prompts > 1:
        return Refusal.MANY_PROMPTS
    if request.num_choices > 1:
        return Refusal.MANY_CHOICES
    if request.sampling_params.get("structured_outputs") is not None:
        return Refusal.STRUCTURED  # the grammar would start anew, in the middle of the answer
    if not allow_approximate and _is_approximate(request.sampling_params):
        return Refusal.APPROXIMATE
    return None


def _continued(request: TokenizedRequest, progress: StreamProgress) -> TokenizedRequest:
    num_committed = len(progress.committed_ids)
    params = {**request.sampling_params, "max_tokens": request.max_tokens - num_committed}
    if params.get("min_tokens"):
        params["min_tokens"] = max(0, int(params["min_tokens"]) - num_committed)
    metadata = dict(request.metadata)
    if progress.has_content and "reasoning_ended" in metadata:
        metadata["reasoning_ended"] = msgspec.Raw(b"true")
    ids = SemanticTokenIds((*request.semantic_ids, *progress.committed_ids))
    return replace(request, semantic_ids=ids, physical_ids=None, sampling_params=params, metadata=metadata)


def can_be_joined(request: TokenizedRequest) -> bool:
    """Whether a whole answer may be made of parts by several engines.

    Not with stop strings: a whole answer's text is not looked at before its end, so none across a cut would be found.
    """
    return request.num_choices == 1 and not request.sampling_params.get("stop")


def _is_approximate(params: Mapping[str, Any]) -> bool:
    is_sampled = params.get("temperature", _DEFAULT_TEMPERATURE) != 0
    return (is_sampled and params.get("seed") is not None) or any(params.get(name) for name in _APPROXIMATED_PARAMS)
