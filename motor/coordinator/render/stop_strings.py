"""Stop strings, which vLLM's derender neither cuts nor holds back: that is its caller's work.

An engine ends a choice as soon as a stop string is complete, with all ids up to there. Text that may be the beginning
of one must wait until it is clear that it isn't; native vLLM holds back as much.

An engine that goes on with another's answer doesn't see a stop string that began in the text before the cut. So the end
of that text is kept, and looked at together with what follows, by vLLM's rule (`check_stop_strings` of 0.32).
"""

from dataclasses import dataclass
from typing import Any, Final

_TEXT_FIELDS = ("text", "content", "reasoning")
NOT_ENDED: Final = object()
"""In place of a stop reason: the choice goes on."""


@dataclass(frozen=True, slots=True)
class StopRules:
    """How a choice may end, from the sampling parameters.

    Attributes:
        strings: Stop strings.
        includes_stop: `include_stop_str_in_output`: the string belongs to the text.
        min_tokens: Up to this many tokens no stop string ends the choice.
    """

    strings: tuple[str, ...] = ()
    includes_stop: bool = False
    min_tokens: int = 0

    @property
    def num_tail_characters(self) -> int:
        """How much text at the end may be the beginning of a stop string."""
        return max(map(len, self.strings)) - 1 if self.strings else 0

    @property
    def num_watched_characters(self) -> int:
        """How much text after a cut may complete a string that began before it, or in a character that was cut."""
        return max(map(len, self.strings), default=0)


@dataclass(frozen=True, slots=True)
class Held:
    """The end of the text so far, in which a stop string may have begun; shown only if the string belongs to the text.

    Attributes:
        field: `content`, `reasoning`, `text`, or the index of the tool call whose arguments it belongs to.
        text: The text.
    """

    field: str | int = ""
    text: str = ""


def completed_stop(fields: dict[str, Any], held: Held, stop: StopRules) -> str | None:
    """Return the stop string that new text completes, the earliest if several do; `None` if none does.

    Args:
        fields: Visible members of a delta.
        held: The end of the text before.
        stop: The rules.
    """
    field, text = _last_text(fields)
    before = held.text if field == held.field else ""
    ends = [
        (at + len(string), string)
        for string in stop.strings
        if (at := (before + text).find(string, max(0, len(before) - len(string) + 1))) >= 0
    ]
    return min(ends, key=lambda end: end[0])[1] if text and ends else None


def num_new_characters(fields: dict[str, Any]) -> int:
    """Return the length of the text that a delta adds where the choice is at."""
    return len(_last_text(fields)[1])


def hold_back(fields: dict[str, Any], held: Held, stop: StopRules, ending: object) -> tuple[dict[str, Any], Held]:
    """Return the members to show now, and the text to hold.

    Args:
        fields: Visible members of a delta: text fields and `tool_calls`; not changed.
        held: What was held before.
        stop: The rules.
        ending: The stop reason of a choice that has ended, else `NOT_ENDED`.
    """
    if stop.includes_stop:
        return _keep_tail(fields, held, stop, ending)
    field, text = _last_text(fields)
    if field == "" and ending is NOT_ENDED:
        return fields, held
    if field == "":
        field = held.field
    if field == held.field:
        text = held.text + text
    elif held.text:
        # The text has moved on: what was held can't be part of a stop string any more.
        fields = _with_text(_prepended(fields, held), field, text)
    if field == "":
        return fields, Held()
    if ending is NOT_ENDED:
        num_shown = max(0, len(text) - stop.num_tail_characters)
        return _with_text(fields, field, text[:num_shown]), Held(field, text[num_shown:])
    if isinstance(ending, str) and ending in text:
        text = text[: text.index(ending)]
    return _with_text(fields, field, text), Held()


def _keep_tail(fields: dict[str, Any], held: Held, stop: StopRules, ending: object) -> tuple[dict[str, Any], Held]:
    """Show everything up to the end of a stop string, and keep the end of the text in mind."""
    field, text = _last_text(fields)
    if field == "":
        return fields, held
    before = held.text if field == held.field else ""
    if isinstance(ending, str):
        at = (before + text).find(ending, max(0, len(before) - len(ending) + 1))
        if at >= 0:
            fields = _with_text(fields, field, text[: at + len(ending) - len(before)])
        return fields, Held()
    num_before = max(0, len(before) + len(text) - stop.num_tail_characters)
    return fields, Held(field, (before + text)[num_before:])


def _last_text(fields: dict[str, Any]) -> tuple[str | int, str]:
    """Return the text that the choice is at now: arguments of the last tool call before anything else."""
    for call in reversed(fields.get("tool_calls") or ()):
        arguments = (call.get("function") or {}).get("arguments")
        if isinstance(arguments, str):
            return int(call["index"]), arguments
    for name in _TEXT_FIELDS:
        if isinstance(fields.get(name), str):
            return name, fields[name]
    return "", ""


def _prepended(fields: dict[str, Any], held: Held) -> dict[str, Any]:
    """Release held text in front of what has followed it."""
    if isinstance(held.field, str):
        return {**fields, held.field: held.text + (fields.get(held.field) or "")}
    entry = {"index": held.field, "function": {"arguments": held.text}}
    return {**fields, "tool_calls": [entry, *(fields.get("tool_calls") or ())]}


def _with_text(fields: dict[str, Any], field: str | int, text: str) -> dict[str, Any]:
    """Return the members with another text in the last place of a field; without it where nothing is left."""
    if isinstance(field, str):
        rest = {key: value for key, value in fields.items() if key != field}
        return {**rest, field: text} if text or field == "text" else rest
    calls = list(fields.get("tool_calls") or ())
    at = next((i for i in reversed(range(len(calls))) if "arguments" in (calls[i].get("function") or {})), None)
    if at is None:
        calls.append({"index": field, "function": {"arguments": text}})
        at = len(calls) - 1
    elif calls[at]["index"] == field:
        calls[at] = {**calls[at], "function": {**calls[at]["function"], "arguments": text}}
    if not text:
        function = {key: value for key, value in calls[at]["function"].items() if key != "arguments"}
        calls[at : at + 1] = [{**calls[at], "function": function}] if function else []
    rest = {key: value for key, value in fields.items() if key != "tool_calls"}
    return {**rest, "tool_calls": calls} if calls else rest
