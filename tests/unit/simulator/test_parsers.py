"""Reasoning and tool calls: complete, and the same when the text grows by any steps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from motor.simulator.parsers import ParsedCall, ParsedText, parse_output

CALL = '<tool_call>\n{"name": "get_time", "arguments": {"city": "a}\\"{b", "n": [1, {}]}}\n</tool_call>'
PARSED_CALL = ParsedCall("get_time", '{"city": "a}\\"{b", "n": [1, {}]}')
CASES = [
    ("plain < text > with <th markers", False, ParsedText(content="plain < text > with <th markers")),
    ("<think>\nwhy\n</think>\n\nso", True, ParsedText("\nwhy\n", "\n\nso")),
    ("never closed", True, ParsedText("never closed", "")),
    (f"Let me see.\n{CALL}\n{CALL}", False, ParsedText("", "Let me see.\n", (PARSED_CALL, PARSED_CALL))),
    (f"thinking{CALL}", True, ParsedText("thinking", "", (PARSED_CALL,))),
]


@pytest.mark.parametrize(("text", "is_thinking", "parsed"), CASES)
def test_complete_texts(text: str, is_thinking: bool, parsed: ParsedText) -> None:
    assert parse_output(text, is_thinking=is_thinking, has_tools=True, is_finished=True) == parsed


def test_without_tools_a_call_is_content() -> None:
    assert parse_output(CALL, is_thinking=False, has_tools=False, is_finished=True) == ParsedText(content=CALL)


@given(case=st.sampled_from(CASES), data=st.data())
def test_parts_only_grow(case: tuple[str, bool, ParsedText], data: st.DataObject) -> None:
    text, is_thinking, parsed = case
    end = data.draw(st.integers(0, len(text)))
    partial = parse_output(text[:end], is_thinking=is_thinking, has_tools=True, is_finished=False)
    assert parsed.reasoning.startswith(partial.reasoning)
    assert parsed.content.startswith(partial.content)
    assert len(partial.calls) <= len(parsed.calls)
    for before, after in zip(partial.calls, parsed.calls, strict=False):
        assert (before.name, after.arguments[: len(before.arguments)]) == (after.name, before.arguments)
