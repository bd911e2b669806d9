"""A streamed answer put together again: one value per field, however the text was cut into chunks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from motor.parity.chunk_shape import ChunkShape, chunk_shape
from motor.parity.documented import Json
from motor.parity.json_comparison import Joined

_TEXT_FIELDS: Final = frozenset({"content", "reasoning", "reasoning_content", "refusal", "text", "arguments", "name"})


@dataclass(slots=True)
class JoinedStream:
    """The whole answer of one stream; mutable while `join_stream` fills it.

    Attributes:
        answer: Top-level fields and joined choices, in the form of a non-streamed answer.
        others: Chunks that belong to no choice, whole: the usage chunk and errors, in order.
        shapes: The shapes of every choice's chunks, in order, by choice index.
        openers: Index, delta and usage of each role chunk at the start; these are never cut, so they must be equal.
        drifting: Top-level fields whose value changes within the stream although they name the whole answer.
    """

    answer: Joined = field(default_factory=Joined)
    others: list[Json] = field(default_factory=list)
    shapes: dict[int, list[ChunkShape]] = field(default_factory=dict)
    openers: list[Json] = field(default_factory=list)
    drifting: list[str] = field(default_factory=list)


def join_stream(chunks: Sequence[Json]) -> JoinedStream:
    """Put `chunks`, the parsed payloads of one stream, together."""
    joined = JoinedStream()
    choices: dict[int, Json] = {}
    is_opening = True
    for chunk in chunks:
        if not isinstance(chunk, dict) or not isinstance(chunk.get("choices"), list) or not chunk["choices"]:
            joined.others.append(chunk)
            _note_identity(joined, chunk)
            continue
        _note_identity(joined, chunk)
        for choice in _choices_of(chunk):
            index = choice.get("index")
            key = index if isinstance(index, int) else -1
            shape = chunk_shape(chunk, choice)
            is_opening = is_opening and "role" in shape.delta_paths
            if is_opening:
                joined.openers.append([key, choice.get("delta"), chunk.get("usage")])
            joined.shapes.setdefault(key, []).append(shape)
            # The usage of a chunk is its choice's own count so far; the last one is the choice's total.
            choices[key] = _merged(choices.get(key), {**choice, "usage": chunk.get("usage")}, "")
    joined.answer["choices"] = [choices[key] for key in sorted(choices)]
    return joined


def _choices_of(chunk: dict[str, Json]) -> list[dict[str, Json]]:
    choices = chunk["choices"]
    return [choice for choice in choices if isinstance(choice, dict)] if isinstance(choices, list) else []


def _note_identity(joined: JoinedStream, chunk: Json) -> None:
    """Keep the fields that name the whole answer; note those that change on the way."""
    if not isinstance(chunk, dict):
        return
    for name, value in chunk.items():
        if name in {"choices", "usage", "error"}:
            continue
        if joined.answer.get(name) not in (None, value) and value is not None:
            joined.drifting.append(name)
        if joined.answer.get(name) is None:
            joined.answer[name] = value


def _merged(so_far: Json, value: Json, name: str) -> Json:
    if value is None:
        return so_far
    if isinstance(value, dict):
        return _merged_object(so_far if isinstance(so_far, dict) else Joined(), value)
    if isinstance(value, list):
        return _merged_list(so_far if isinstance(so_far, list) else [], value)
    if so_far is None or name not in _TEXT_FIELDS:
        # A role, id or finish reason that is sent twice with another value stays visible.
        is_change = so_far is not None and so_far != value and isinstance(value, str)
        return f"{so_far} then {value}" if is_change else value
    return f"{so_far}{value}"


def _merged_object(so_far: dict[str, Json], value: dict[str, Json]) -> Json:
    merged = Joined(so_far)
    for name, member in value.items():
        merged[name] = _merged(merged.get(name), member, name)
    return merged


def _merged_list(so_far: list[Json], value: list[Json]) -> Json:
    """Tool calls are joined by their `index`; every other list (logprobs, token ids) goes on where it ended."""
    merged = list(so_far)
    for entry in value:
        if not (isinstance(entry, dict) and "index" in entry):
            merged.append(entry)
            continue
        places = [n for n, old in enumerate(merged) if isinstance(old, dict) and old.get("index") == entry["index"]]
        if places:
            merged[places[0]] = _merged(merged[places[0]], entry, "")
        else:
            merged.append(_merged(None, entry, ""))
    return merged
