"""The corpus that comes with the package covers what it must cover."""

import json

import pytest

from motor.parity.cases import Case, Mode
from motor.parity.corpus import load_corpus

GOOD_FEATURES = [
    "role-system",
    "role-developer",
    "role-user",
    "role-assistant",
    "role-tool",
    "content-parts",
    "tool-choice-auto",
    "tool-choice-none",
    "tool-choice-required",
    "tool-choice-named",
    "parallel-tool-calls-false",
    "reasoning-on",
    "reasoning-off",
    "include-reasoning",
    "json-object",
    "json-schema",
    "logprobs",
    "top-logprobs-0",
    "top-logprobs-1",
    "top-logprobs-5",
    "completions-logprobs-0",
    "completions-logprobs-1",
    "completions-logprobs-5",
    "echo",
    "echo-logprobs",
    "n-2",
    "n-3",
    "prompt-list",
    "prompt-list-n",
    "prompt-ids",
    "max-tokens-absent",
    "max-tokens-1",
    "max-tokens-16",
    "max-tokens-17",
    "max-completion-tokens",
    "stop-one",
    "stop-several",
    "stop-across-chunks",
    "stop-multi-byte",
    "include-stop-str",
    "stop-token-ids",
    "ignore-eos",
    "min-tokens",
    "seed",
    "penalties",
    "logit-bias",
    "skip-special-tokens",
    "return-token-ids",
    "prompt-logprobs",
    "include-usage",
    "continuous-usage-stats",
    "truncate-prompt-tokens",
    "add-special-tokens",
    "chat-template-kwargs",
    "continue-final-message",
    "cache-salt",
    "priority",
    "suffix",
    "user",
    "unknown-field",
    "request-id",
    "unicode",
    "plane-0",
    "plane-1",
    "plane-2",
    "plane-3",
    "plane-4-13",
    "plane-14",
    "plane-15",
    "plane-16",
    "control-characters",
]
BAD_FEATURES = [
    "bad-type",
    "bad-messages",
    "bad-prompt",
    "bad-role",
    "bad-content",
    "bad-n",
    "bad-range",
    "bad-model",
    "bad-context",
    "bad-max-tokens",
    "bad-tools",
    "bad-response-format",
    "bad-stream-options",
    "bad-logprobs",
    "bad-json",
    "bad-encoding",
    "bad-content-type",
    "bad-token-ids",
    "bad-stop",
    "bad-suffix",
    "bad-salt",
    "bad-template",
    "bad-method",
    "bad-path",
    "lone-surrogate",
]


@pytest.fixture(scope="module")
def corpus() -> list[Case]:
    return load_corpus()


def test_there_are_enough_cases(corpus: list[Case]) -> None:
    assert sum(not case.is_bad for case in corpus) >= 200
    assert sum(case.is_bad for case in corpus) >= 60
    assert sum(len(case.modes) for case in corpus) >= 500


@pytest.mark.parametrize("feature", GOOD_FEATURES)
def test_every_feature_has_a_good_case(corpus: list[Case], feature: str) -> None:
    assert any(feature in case.tags for case in corpus if not case.is_bad)


@pytest.mark.parametrize("feature", BAD_FEATURES)
def test_every_kind_of_bad_request_has_a_case(corpus: list[Case], feature: str) -> None:
    assert any(feature in case.tags for case in corpus if case.is_bad)


@pytest.mark.parametrize("tag", ["tool-choice-auto", "reasoning-on", "stop-one", "echo", "n-3", "json-schema", "bad-n"])
def test_features_are_asked_for_in_both_modes(corpus: list[Case], tag: str) -> None:
    modes = {mode for case in corpus if tag in case.tags for mode in case.modes}

    assert {Mode.WHOLE, Mode.STREAM} <= modes


def test_every_request_can_be_written(corpus: list[Case]) -> None:
    for case in corpus:
        for mode in case.modes:
            request = case.request(mode, "tiny", "salt")
            if case.raw is None:
                assert json.loads(request.body)["model"] in {"tiny", "nobody", "", None, 7}, case.name


def test_sampled_cases_have_a_seed_or_one_outcome(corpus: list[Case]) -> None:
    sampled = [
        case for case in corpus if case.body and not case.is_bad and case.body.get("temperature") not in {0, "0"}
    ]

    assert sampled
    for case in sampled:
        assert case.body is not None
        assert "seed" in case.body or case.body.get("top_k") == 1, case.name
