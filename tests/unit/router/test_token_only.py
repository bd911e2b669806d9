"""The wire form of a leg, and what counts as an answer to it."""

import json
from typing import Any

import msgspec
import pytest

from motor.coordinator.domain.errors import EngineBroken
from motor.coordinator.domain.generation import GenerateChoice, GenerateResponse
from motor.coordinator.domain.tokens import PhysicalTokenIds, SemanticTokenIds
from motor.coordinator.render.models import TokenizedRequest
from motor.coordinator.router.token_only import Leg, LegKind, engine_request, validated


def request(physical: tuple[int, ...] | None = None, **params: Any) -> TokenizedRequest:
    return TokenizedRequest(
        prompt_index=2,
        semantic_ids=SemanticTokenIds((1, 2, 3)),
        sampling_params={"max_tokens": 16, "temperature": 0.0, **params},
        metadata={
            "model": msgspec.Raw(b'"tiny"'),
            "cache_salt": msgspec.Raw(b'"s"'),
            "priority": msgspec.Raw(b"3"),
            "kv_transfer_params": msgspec.Raw(b'{"do_remote_prefill":true}'),
        },
        physical_ids=None if physical is None else PhysicalTokenIds(physical),
    )


def test_everything_render_said_goes_along() -> None:
    wire = engine_request("chatcmpl-x", request(seed=7), Leg(LegKind.UNION, is_stream=True))
    assert json.loads(wire.body) == {
        "model": "tiny",
        "cache_salt": "s",
        "priority": 3,
        "request_id": "chatcmpl-x-p2-a0-union",
        "token_ids": [1, 2, 3],
        "sampling_params": {"max_tokens": 16, "temperature": 0.0, "seed": 7, "output_kind": 1},
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert wire.all_headers == {"Content-Type": "application/json", "X-Request-Id": "chatcmpl-x-p2-a0-union"}


def test_a_clients_own_kv_parameters_never_reach_an_engine() -> None:
    extra = {"kv_transfer_params": {"do_remote_prefill": True}, "kept": 1}
    body = json.loads(engine_request("x", request(extra_args=extra), Leg(LegKind.UNION)).body)
    assert "kv_transfer_params" not in body
    assert body["sampling_params"]["extra_args"] == {"kept": 1}


def test_kv_parameters_of_a_leg_stand_in_both_places() -> None:
    leg = Leg(LegKind.DECODE, attempt=1, kv_transfer_params={"remote_port": 5}, data_parallel_rank=3)
    wire = engine_request("x", request(), leg)
    body = json.loads(wire.body)
    assert body["kv_transfer_params"] == {"remote_port": 5}
    assert body["sampling_params"]["extra_args"]["kv_transfer_params"] == {"remote_port": 5}
    assert wire.request_id == "x-p2-a1-decode"
    assert wire.headers["X-data-parallel-rank"] == "3"


def test_the_engine_sees_physical_ids() -> None:
    assert json.loads(engine_request("x", request((9, 8, 7)), Leg(LegKind.UNION)).body)["token_ids"] == [9, 8, 7]


def test_choices_are_put_in_order() -> None:
    response = GenerateResponse(
        choices=[GenerateChoice(index=1, token_ids=[2]), GenerateChoice(index=0, token_ids=[1])]
    )
    assert [choice.index for choice in validated(response, request(n=2)).choices] == [0, 1]


@pytest.mark.parametrize(
    "choices",
    [
        [],
        [GenerateChoice(index=0, token_ids=None)],
        [GenerateChoice(index=1, token_ids=[1])],
        [GenerateChoice(index=0, token_ids=[1]), GenerateChoice(index=0, token_ids=[1])],
    ],
)
def test_an_answer_to_another_question_is_refused(choices: list[GenerateChoice]) -> None:
    with pytest.raises(EngineBroken):
        validated(GenerateResponse(choices=choices), request())
