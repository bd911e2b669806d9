"""What happens after a fault, decided from what the client has."""

from typing import Any

import msgspec
import pytest

from motor.coordinator.domain.tokens import PhysicalTokenIds, SemanticTokenIds
from motor.coordinator.render.models import StreamProgress, TokenizedRequest
from motor.coordinator.router.replay import FinishByLength, GiveUp, Refusal, Restart, Resume, plan_retry
from motor.coordinator.router.retry_budget import RetryBudget


def request(**params: Any) -> TokenizedRequest:
    return TokenizedRequest(
        prompt_index=0,
        semantic_ids=SemanticTokenIds((1, 2, 3)),
        sampling_params={"max_tokens": 10, **params},
        metadata={"reasoning_ended": msgspec.Raw(b"false"), "cache_salt": msgspec.Raw(b'"s"')},
        physical_ids=PhysicalTokenIds((9, 9, 9)),
    )


def seen(*ids: int, **fields: Any) -> StreamProgress:
    return StreamProgress(ids, is_request_visible=True, **fields)


def test_an_invisible_attempt_begins_anew() -> None:
    progress = StreamProgress((), is_request_visible=False, num_prompts=3)
    assert plan_retry(request(n=2, structured_outputs={}), progress, allow_approximate=False) == Restart()


def test_a_visible_one_goes_on_after_the_committed_ids() -> None:
    plan = plan_retry(request(min_tokens=5), seen(7, 8), allow_approximate=False)
    assert isinstance(plan, Resume)
    assert plan.request.semantic_ids == (1, 2, 3, 7, 8)
    assert plan.request.physical_ids is None  # obfuscated anew for each attempt
    assert plan.request.sampling_params == {"max_tokens": 8, "min_tokens": 3}
    metadata = {name: bytes(value) for name, value in plan.request.metadata.items()}
    assert metadata == {"reasoning_ended": b"false", "cache_salt": b'"s"'}


def test_reasoning_has_ended_once_content_was_shown() -> None:
    plan = plan_retry(request(), seen(7, has_content=True), allow_approximate=False)
    assert isinstance(plan, Resume)
    assert bytes(plan.request.metadata["reasoning_ended"]) == b"true"


def test_min_tokens_never_goes_below_zero() -> None:
    plan = plan_retry(request(min_tokens=1), seen(7, 8), allow_approximate=False)
    assert isinstance(plan, Resume)
    assert plan.request.sampling_params["min_tokens"] == 0


def test_a_spent_budget_only_lacks_its_finish_reason() -> None:
    assert plan_retry(request(max_tokens=2), seen(7, 8), allow_approximate=False) == FinishByLength()


@pytest.mark.parametrize(
    ("params", "fields", "refusal"),
    [
        ({"structured_outputs": {"json": "{}"}}, {}, Refusal.STRUCTURED),
        ({"n": 2}, {}, Refusal.MANY_CHOICES),
        ({}, {"num_prompts": 2}, Refusal.MANY_PROMPTS),
        ({"seed": 3, "temperature": 0.7}, {}, Refusal.APPROXIMATE),
        ({"seed": 3}, {}, Refusal.APPROXIMATE),  # temperature 1 is left out, as vLLM's default
        ({"frequency_penalty": 0.5}, {}, Refusal.APPROXIMATE),
        ({"presence_penalty": -0.5}, {}, Refusal.APPROXIMATE),
        ({"bad_words": ["x y"]}, {}, Refusal.APPROXIMATE),
        ({"thinking_token_budget": 5}, {}, Refusal.APPROXIMATE),
    ],
)
def test_what_could_not_be_right_is_refused(params: Any, fields: Any, refusal: Refusal) -> None:
    assert plan_retry(request(**params), seen(7, **fields), allow_approximate=False) == GiveUp(refusal)
    is_approximate = refusal is Refusal.APPROXIMATE
    assert (
        isinstance(plan_retry(request(**params), seen(7, **fields), allow_approximate=True), Resume) is is_approximate
    )


@pytest.mark.parametrize(
    "params",
    [
        {"stop": ["x"]},
        {"repetition_penalty": 1.3},  # counts the prompt too
        {"logprobs": 3},
        {"temperature": 0.8, "top_p": 0.9},  # any continuation is as good
        {"logit_bias": {"7": 3.0}},
    ],
)
def test_what_is_exact_goes_on(params: Any) -> None:
    assert isinstance(plan_retry(request(**params), seen(7), allow_approximate=False), Resume)


def test_a_greedy_seed_is_exact() -> None:
    assert isinstance(plan_retry(request(seed=3, temperature=0.0), seen(7), allow_approximate=False), Resume)


def test_the_retry_budget_is_a_share_of_the_traffic() -> None:
    budget = RetryBudget(share=0.25, reserve=2)
    assert [budget.take_out() for _ in range(3)] == [True, True, False]
    for _ in range(4):
        budget.pay_in()
    assert [budget.take_out() for _ in range(2)] == [True, False]
    for _ in range(100):
        budget.pay_in()
    assert [budget.take_out() for _ in range(3)] == [True, True, False]
