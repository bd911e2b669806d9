"""The budget of an answer: what the prompt leaves of the context."""

from typing import Any

import pytest

from motor.coordinator.domain.errors import RequestInvalid
from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.domain.tokens import SemanticTokenIds
from motor.coordinator.render.context_budget import within_context
from motor.coordinator.render.models import TokenizedRequest

CONTEXT = 100


def tokenized(num_prompt_tokens: int, max_tokens: int, prompt_index: int = 0) -> TokenizedRequest:
    """Return a rendered prompt."""
    ids = SemanticTokenIds(tuple(range(num_prompt_tokens)))
    return TokenizedRequest(prompt_index, ids, {"max_tokens": max_tokens, "n": 2, "temperature": 0.5})


def asked(**fields: Any) -> ClientRequest:
    """Return the client's side of it."""
    return ClientRequest("r", "r", Api.COMPLETIONS, b"", fields)


@pytest.mark.parametrize(
    ("num_prompt_tokens", "max_tokens", "expected"),
    [(1, 1, 1), (40, 60, 60), (40, 61, 60), (99, 5000, 1), (50, 50, 50)],
)
def test_what_is_left_bounds_the_answer(num_prompt_tokens: int, max_tokens: int, expected: int) -> None:
    given = tokenized(num_prompt_tokens, max_tokens)
    clipped = within_context(asked(prompt="a"), given, CONTEXT)
    assert clipped.max_tokens == clipped.sampling_params["max_tokens"] == expected
    assert {**clipped.sampling_params, "max_tokens": max_tokens} == given.sampling_params
    assert given.max_tokens == max_tokens  # a changed copy, if anything changed
    assert (clipped is given) == (expected == max_tokens)


@pytest.mark.parametrize(
    ("prompt", "prompt_index", "num_tokens", "counted"),
    [
        ("text", 0, 150, "at least 101"),
        ("text", 0, 101, "at least 101"),
        (["a", "b"], 1, 150, "at least 101"),
        ([1] * 150, 0, 150, "150"),
        ([1] * 101, 0, 101, "at least 101"),
        ([[1], [2] * 150], 1, 150, "150"),
        (None, 0, 150, "at least 101"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_prompt_over_the_context_is_refused_in_natives_words(
    prompt: object, prompt_index: int, num_tokens: int, counted: str
) -> None:
    with pytest.raises(RequestInvalid) as caught:
        within_context(asked(prompt=prompt), tokenized(num_tokens, 5, prompt_index), CONTEXT)
    assert str(caught.value) == (
        f"This model's maximum context length is 100 tokens. However, your prompt contains {counted} input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt."
    )
    assert (caught.value.status, caught.value.body.param) == (400, "input_tokens")


def test_a_prompt_that_fills_the_context_leaves_no_answer() -> None:
    with pytest.raises(RequestInvalid, match=r"^max_tokens must be at least 1, got 0\.$"):
        within_context(asked(prompt="a"), tokenized(CONTEXT, 5), CONTEXT)
