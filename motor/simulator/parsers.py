"""A `<think>` reasoning parser and a Hermes tool parser in a simple form: pure functions of the whole text so far."""

import re
from dataclasses import dataclass

THINK, END_THINK = "<think>", "</think>"
TOOL, END_TOOL = "<tool_call>", "</tool_call>"
_NAME = re.compile(r'"name"\s*:\s*"([^"]*)"')
_ARGUMENTS = re.compile(r'"arguments"\s*:\s*')


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """A tool call, perhaps with a part of its arguments.

    Attributes:
        name: The function.
        arguments: The arguments' JSON as generated; a prefix while the call goes on.
    """

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ParsedText:
    """An output in its parts; each part only grows as the text does.

    Attributes:
        reasoning: The text of thinking.
        content: The text before the first tool call, thinking apart.
        calls: The tool calls.
    """

    reasoning: str = ""
    content: str = ""
    calls: tuple[ParsedCall, ...] = ()


def parse_output(text: str, *, is_thinking: bool, has_tools: bool, is_finished: bool) -> ParsedText:
    """Split an output.

    Args:
        text: The output so far, markers included.
        is_thinking: Whether the prompt leaves thinking open: then all is reasoning up to `</think>` or a tool call.
        has_tools: Whether tool calls are to be found.
        is_finished: Whether the text is complete; else an ending that may grow into a marker is held back.
    """
    if not is_finished:
        text = _without_partial_marker(text)
    reasoning, rest = _split_reasoning(text) if is_thinking else ("", text)
    start = rest.find(TOOL) if has_tools else -1
    if start < 0:
        return ParsedText(reasoning, rest)
    parts = rest[start + len(TOOL) :].split(TOOL)
    calls = [call for part in parts if (call := _parse_call(part.split(END_TOOL)[0])) is not None]
    return ParsedText(reasoning, rest[:start], tuple(calls))


def _split_reasoning(text: str) -> tuple[str, str]:
    text = text.removeprefix(THINK)
    end = text.find(END_THINK)
    if end >= 0:
        return text[:end], text[end + len(END_THINK) :]
    tool = text.find(TOOL)
    return (text, "") if tool < 0 else (text[:tool], text[tool:])


def _parse_call(body: str) -> ParsedCall | None:
    name = _NAME.search(body)
    if name is None:
        return None
    arguments = _ARGUMENTS.search(body, name.end())
    return ParsedCall(name[1], "" if arguments is None else _balanced(body[arguments.end() :]))


def _balanced(text: str) -> str:
    """Return the JSON object that a text begins with, or as much of it as there is."""
    depth, in_string, is_escaped = 0, False, False
    for position, character in enumerate(text):
        if is_escaped:
            is_escaped = False
        elif in_string:
            is_escaped = character == "\\"
            in_string = character != '"'
        elif character == '"':
            in_string = True
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
            if depth == 0:
                return text[: position + 1]
    return text


def _without_partial_marker(text: str) -> str:
    for marker in (THINK, END_THINK, TOOL, END_TOOL):
        for length in range(min(len(marker) - 1, len(text)), 0, -1):
            if text.endswith(marker[:length]):
                return text[:-length]
    return text
