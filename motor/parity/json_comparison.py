"""Two JSON values compared in every respect that a client can see: type, keys, key order, values, writing style."""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from motor.parity.documented import Json

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_ESCAPED_SCRIPT = re.compile(r"(?<!\\)(?:\\\\)*\\u(?!00[01])")  # control characters are escaped in every style
_SHOWN_CHARS: Final = 300


class Joined(dict[str, Json]):
    """An object put together from several chunks: the order of its keys depends on where the chunks were cut."""


def shown(value: Json) -> str:
    """Return `value` as JSON, cut to a length that fits a report."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}… ({len(text)} characters)"


def writing_traits(texts: Iterable[str]) -> list[str]:
    """Return how JSON texts are written: `compact` or `spaced`, and `escaped` if other scripts are escaped anywhere."""
    traits: set[str] = set()
    for text in texts:
        traits.add("spaced" if re.search(r"\s", _STRING.sub('""', text)) else "compact")
        if _ESCAPED_SCRIPT.search(text):
            traits.add("escaped")
    return sorted(traits)


def repeated_keys(text: str) -> list[str]:
    """Return the keys that one object of the JSON `text` holds more than once."""
    repeated: list[str] = []

    def collect(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        collected = dict(pairs)
        if len(collected) != len(pairs):
            names = [name for name, _ in pairs]
            repeated.extend(sorted({name for name in names if names.count(name) > 1}))
        return collected

    json.loads(text, object_pairs_hook=collect)
    return repeated


def differing_values(native: Json, ours: Json, path: str) -> Iterator[tuple[str, Json, Json]]:
    """Yield `(path, native, ours)` for every place where the two values differ."""
    if isinstance(native, dict) and isinstance(ours, dict):
        yield from _differing_objects(native, ours, path)
    elif isinstance(native, list) and isinstance(ours, list):
        if len(native) != len(ours):
            yield f"{path}.$length", len(native), len(ours)
        for index, (left, right) in enumerate(zip(native, ours, strict=False)):
            yield from differing_values(left, right, f"{path}[{index}]")
    elif type(native) is not type(ours) or native != ours:
        yield path, native, ours


def _differing_objects(native: dict[str, Json], ours: dict[str, Json], path: str) -> Iterator[tuple[str, Json, Json]]:
    prefix = f"{path}." if path else ""
    for key, value in native.items():
        if key in ours:
            yield from differing_values(value, ours[key], f"{prefix}{key}")
        else:
            yield f"{prefix}{key}.$missing", value, None
    for key in ours.keys() - native.keys():
        yield f"{prefix}{key}.$extra", None, ours[key]
    common_native = [key for key in native if key in ours]
    common_ours = [key for key in ours if key in native]
    if common_native != common_ours and not isinstance(native, Joined):
        yield f"{prefix}$key_order", list(native), list(ours)
