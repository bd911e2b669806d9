"""Staging, deriving and committing one choice; expected texts are written by hand."""

import json
from typing import Any

import pytest

from motor.coordinator.domain.generation import GenerateChoice
from motor.coordinator.render.derender_state import DerenderState
from motor.coordinator.render.models import DerenderedChoice, DerenderedChunk
from motor.coordinator.render.prompt_stream import ChoiceEvent, IllegalTransition, PromptStream
from motor.coordinator.render.stop_strings import StopRules


def chunk(**choice: Any) -> DerenderedChunk:
    return DerenderedChunk(choices=[DerenderedChoice(**choice)])


def step(stream: PromptStream, choice: GenerateChoice, **derendered: Any) -> ChoiceEvent | None:
    stream.stage(choice)
    outcome = stream.derive(chunk(**derendered), DerenderState())
    stream.commit(outcome)
    return outcome.event


def test_nothing_changes_before_the_commit() -> None:
    stream = PromptStream(0, StopRules())
    stream.stage(GenerateChoice(index=0, token_ids=[7, 8]))
    after = DerenderState(b"{}")
    outcome = stream.derive(chunk(delta={"content": "Hi", "role": "assistant", "reasoning": None}), after)
    assert (stream.whole_state(), stream.num_committed) == (b"null", 0)
    assert outcome.event == ChoiceEvent(token_ids=[7, 8], delta={"content": "Hi"})
    stream.commit(outcome)
    assert (stream.whole_state(), stream.committed_ids) == (b"{}", (7, 8))


def test_a_failed_derender_call_can_be_repeated() -> None:
    stream = PromptStream(0, StopRules())
    choice = GenerateChoice(index=0, token_ids=[7])
    stream.stage(choice)
    stream.abandon_staged()
    assert step(stream, choice, delta={"content": "a"}) == ChoiceEvent(token_ids=[7], delta={"content": "a"})


def test_illegal_steps_leave_the_state_unchanged() -> None:
    stream = PromptStream(0, StopRules())
    with pytest.raises(IllegalTransition):
        stream.derive(chunk(delta={}), DerenderState())
    stream.stage(GenerateChoice(index=0, token_ids=[7]))
    with pytest.raises(IllegalTransition):
        stream.stage(GenerateChoice(index=0, token_ids=[8]))
    stream.commit(stream.derive(chunk(delta={"content": "a"}), DerenderState()))
    assert stream.committed_ids == (7,)
    step(stream, GenerateChoice(index=0, token_ids=[9], finish_reason="length"), delta={})
    with pytest.raises(IllegalTransition):
        stream.stage(GenerateChoice(index=0, token_ids=[8]))


@pytest.mark.parametrize(
    ("finish_reason", "stop_reason", "includes_stop", "asked"),
    [
        ("stop", None, False, [7]),  # the end-of-sequence id is no text
        ("stop", 151645, False, [7]),  # nor is a stop token id
        ("stop", "END", False, [7, 8]),  # a stop string's ids are; only their text is cut
        ("stop", None, True, [7, 8]),
        ("length", None, False, [7, 8]),
        ("abort", None, False, [7, 8]),
    ],
)
def test_the_terminating_id_never_reaches_derender(
    finish_reason: str, stop_reason: int | str | None, includes_stop: bool, asked: list[int]
) -> None:
    stream = PromptStream(0, StopRules((), includes_stop))
    choice = GenerateChoice(index=0, token_ids=[7, 8], finish_reason=finish_reason, stop_reason=stop_reason)
    assert stream.stage(choice).token_ids == asked
    event = stream.derive(chunk(delta={}), DerenderState()).event
    assert event is not None
    assert event.token_ids == [7, 8]


def test_empty_deltas_are_dropped_unless_they_carry_something() -> None:
    assert step(PromptStream(0, StopRules()), GenerateChoice(index=0, token_ids=[7]), delta={"content": None}) is None
    shown = step(PromptStream(0, StopRules(), keeps_empty=True), GenerateChoice(index=0, token_ids=[7]), delta={})
    assert shown == ChoiceEvent(token_ids=[7], delta={})
    # Without a parser native vLLM does send an empty text.
    shown = step(PromptStream(0, StopRules()), GenerateChoice(index=0, token_ids=[7]), delta={"content": ""})
    assert shown == ChoiceEvent(token_ids=[7], delta={"content": ""})


@pytest.mark.parametrize(
    ("engine_reason", "is_named", "expected"),
    [("stop", False, "tool_calls"), ("length", False, "length"), ("abort", False, "abort"), ("stop", True, "stop")],
)
def test_tool_calls_replaces_stop_and_nothing_else(engine_reason: str, is_named: bool, expected: str) -> None:
    stream = PromptStream(0, StopRules(), is_named_tool_choice=is_named)
    call = {"index": 0, "id": "x", "function": {"name": "f", "arguments": None}, "type": None}
    event = step(stream, GenerateChoice(index=0, token_ids=[7]), delta={"tool_calls": [call]})
    assert event is not None
    assert event.delta == {"tool_calls": [{"index": 0, "id": "x", "function": {"name": "f"}}]}
    event = step(stream, GenerateChoice(index=0, token_ids=[8], finish_reason=engine_reason), delta={})
    assert event is not None
    assert event.finish_reason == expected


def shown_text(
    strings: tuple[str, ...], pieces: list[str], stop_reason: str | None, includes: bool = False
) -> list[str]:
    stream = PromptStream(0, StopRules(strings, includes))
    texts = []
    for number, piece in enumerate(pieces):
        is_last = number == len(pieces) - 1
        reason = ("stop" if stop_reason else "length") if is_last else None
        choice = GenerateChoice(
            index=0, token_ids=[number], finish_reason=reason, stop_reason=stop_reason if is_last else None
        )
        event = step(stream, choice, text=piece)
        texts.append(event.text or "" if event else "")
    return texts


def test_a_stop_string_over_three_chunks_is_cut_and_never_shown() -> None:
    assert shown_text(("STOP",), ["one S", "TO", "P two"], "STOP") == ["on", "e ", ""]


def test_a_prefix_of_a_stop_string_is_released() -> None:
    assert shown_text(("STOP",), ["a ST", "ALL b", "c"], None) == ["a", " STAL", "L bc"]


def test_of_overlapping_stop_strings_the_engines_choice_counts() -> None:
    assert shown_text(("abcd", "cd"), ["xab", "cd"], "abcd") == ["", "x"]
    assert shown_text(("cdz", "cd"), ["xab", "cd"], "cd") == ["x", "ab"]


def test_an_included_stop_string_is_shown_at_once() -> None:
    assert shown_text(("STOP",), ["a ST", "OP"], "STOP", includes=True) == ["a ST", "OP"]


def test_held_text_is_flushed_when_the_text_moves_to_another_field() -> None:
    stream = PromptStream(0, StopRules(("###",)))
    first = step(stream, GenerateChoice(index=0, token_ids=[1]), delta={"reasoning": "think#"})
    second = step(stream, GenerateChoice(index=0, token_ids=[2]), delta={"content": "answer"})
    last = step(stream, GenerateChoice(index=0, token_ids=[3], finish_reason="length"), delta={"content": "#"})
    assert [e.delta if e else None for e in (first, second, last)] == [
        {"reasoning": "thin"},
        {"reasoning": "k#", "content": "answ"},
        {"content": "er#"},
    ]


MARKER = 99


def parsed_stream() -> PromptStream:
    stream = PromptStream(0, StopRules(), marker_ids=frozenset({MARKER}))
    stream.begin_attempt()
    return stream


def parsed_step(stream: PromptStream, *ids: int, content: str | None) -> None:
    stream.stage(GenerateChoice(index=0, token_ids=list(ids)))
    state = DerenderState(b'{"role_sent":true}', is_parsed=True, continuation="c", base_url="u")
    stream.commit(stream.derive(chunk(delta={"content": content}), state))


def test_the_whole_state_is_rebuilt_with_a_compacted_history() -> None:
    stream = parsed_stream()
    for ids in ((1,), (2,), (3, 4), (MARKER,), (5,), (6,), (7, MARKER), (8,)):
        parsed_step(stream, *ids, content="x")
    assert json.loads(stream.whole_state()) == {
        "role_sent": True,
        "output_token_ids": [1, 2, 3, 4, MARKER, 5, 6, 7, MARKER, 8],
        # the first chunk and those with a marker stay alone
        "output_chunk_lens": [1, 3, 1, 2, 2, 1],
    }


def test_an_attempt_that_showed_nothing_is_taken_back() -> None:
    stream = parsed_stream()
    parsed_step(stream, 1, content=None)
    parsed_step(stream, 2, content=None)
    stream.stage(GenerateChoice(index=0, token_ids=[3]))
    stream.end_attempt()
    assert (stream.committed_ids, stream.whole_state()) == ((), b"null")
    stream.begin_attempt()
    parsed_step(stream, 1, content="x")
    assert stream.committed_ids == (1,)


def test_an_attempt_that_showed_something_stays_at_its_last_commit() -> None:
    stream = parsed_stream()
    parsed_step(stream, 1, content="x")
    parsed_step(stream, 2, content=None)
    stream.stage(GenerateChoice(index=0, token_ids=[3]))
    stream.end_attempt()
    assert stream.committed_ids == (1, 2)
    stream.begin_attempt()
    parsed_step(stream, 3, content=None)
    stream.end_attempt()
    assert stream.committed_ids == (1, 2)
    assert json.loads(stream.whole_state())["output_chunk_lens"] == [1, 1]
