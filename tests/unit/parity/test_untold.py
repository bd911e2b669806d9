"""What generate doesn't tell is set aside, what is told wrongly is not."""

import json

from motor.parity.comparison import Answer, compare_answers
from motor.parity.difference import Tolerance


def answer(usage: object) -> Answer:
    return Answer(200, "application/json", json.dumps({"usage": usage}, separators=(",", ":")).encode())


def test_reasoning_tokens_that_ours_does_not_tell() -> None:
    native = answer({"completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 3}})
    [difference] = compare_answers(native, answer({"completion_tokens": 5, "completion_tokens_details": None}))
    assert difference.tolerance is Tolerance.NOT_TOLD
    assert difference.path == "usage.completion_tokens_details"


def test_a_wrong_count_is_a_difference() -> None:
    native = answer({"completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 3}})
    ours = answer({"completion_tokens": 5, "completion_tokens_details": {"reasoning_tokens": 2}})
    assert [difference.tolerance for difference in compare_answers(native, ours)] == [None]


def test_the_details_as_a_whole_must_be_told() -> None:
    native = answer({"completion_tokens": 5, "prompt_tokens_details": {"created_cache_tokens": 3}})
    ours = answer({"completion_tokens": 5, "prompt_tokens_details": None})
    assert [difference.tolerance for difference in compare_answers(native, ours)] == [None]
