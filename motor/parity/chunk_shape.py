"""The shape of a streamed chunk: which keys, in which order, null or not; and which shapes may differ."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from motor.parity.documented import Json

_KIND_NAMES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "list", type(None): "null"}
_PROMPT_IDS = "prompt_token_ids:list"


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """How one chunk of one choice looks, its text aside.

    Attributes:
        outer: Everything but the delta: keys in order with the kinds of their values.
        delta: The delta's keys in order with the kinds of their values; empty for completions.
        delta_paths: Every key below the delta, as `tool_calls.function.name`, in order.
        is_final: Whether the chunk carries the finish reason.
    """

    outer: str
    delta: str
    delta_paths: tuple[str, ...]
    is_final: bool


def chunk_shape(chunk: Mapping[str, Json], choice: Mapping[str, Json]) -> ChunkShape:
    """Return the shape of `chunk` as seen by `choice`, its only or one of its choices."""
    delta = choice.get("delta")
    others = {key: "delta" if key == "delta" else describe(value) for key, value in choice.items()}
    choice_shape = ",".join(f"{key}:{kind}" for key, kind in others.items())
    outer = ",".join(
        f"choices:[{choice_shape}]" if key == "choices" else f"{key}:{describe(value)}" for key, value in chunk.items()
    )
    return ChunkShape(outer, describe(delta), tuple(_paths(delta, "")), choice.get("finish_reason") is not None)


def describe(value: Json) -> str:
    """Return keys in order and kinds; a list is opaque unless it holds tool calls (objects with an `index`)."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{describe(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list) and any(isinstance(entry, dict) and "index" in entry for entry in value):
        return "[" + ",".join(dict.fromkeys(describe(entry) for entry in value)) + "]"
    if type(value) is int or type(value) is str:
        # `stop_reason` is either; its value is compared with the other values.
        return "value"
    return _KIND_NAMES[type(value)]


def _paths(value: Json, prefix: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield f"{prefix}{key}"
            yield from _paths(member, f"{prefix}{key}.")
    elif isinstance(value, list):
        for entry in value:
            yield from _paths(entry, prefix)


def collapsed(shapes: Iterable[ChunkShape]) -> list[ChunkShape]:
    """Return `shapes` without immediate repetitions."""
    kept: list[ChunkShape] = []
    for shape in shapes:
        if not kept or kept[-1] != shape:
            kept.append(shape)
    return kept


def differs_by_boundaries_only(native: Sequence[ChunkShape], ours: Sequence[ChunkShape]) -> bool:
    """Return whether the two sequences can come from one output that was cut at different places.

    Other cuts put the keys of neighbouring deltas into one chunk or into two, and can leave the middle of a choice
    without a chunk of its own. They never change the opening chunk, the outer keys, the set of keys or their order.
    The first chunk of a completion carries the prompt's ids, and may be the last one as well.
    """
    if not native or not ours:
        return not native and not ours
    if _opener(native) != _opener(ours) or _has_prompt(native[0]) != _has_prompt(ours[0]):
        return False
    if _without_prompt(native[-1].outer) != _without_prompt(ours[-1].outer):
        return False
    middle_native, middle_ours = _middle(native), _middle(ours)
    if middle_native and middle_ours and middle_native != middle_ours:
        return False
    paths_native, paths_ours = _all_paths(native), _all_paths(ours)
    return paths_native == paths_ours and not (_orders(native) & {(late, early) for early, late in _orders(ours)})


def _opener(shapes: Sequence[ChunkShape]) -> ChunkShape | None:
    return shapes[0] if "role" in shapes[0].delta_paths else None


def _middle(shapes: Sequence[ChunkShape]) -> list[str]:
    start = 1 if _opener(shapes) else 0
    return list(dict.fromkeys(_without_prompt(shape.outer) for shape in shapes[start:] if not shape.is_final))


def _has_prompt(shape: ChunkShape) -> bool:
    return _PROMPT_IDS in shape.outer


def _without_prompt(outer: str) -> str:
    return outer.replace(_PROMPT_IDS, "prompt_token_ids:null")


def _all_paths(shapes: Sequence[ChunkShape]) -> set[str]:
    return {path for shape in shapes for path in shape.delta_paths}


def _orders(shapes: Sequence[ChunkShape]) -> set[tuple[str, str]]:
    """Every pair of sibling keys that one delta shows in this order."""
    pairs: set[tuple[str, str]] = set()
    for shape in shapes:
        paths = list(dict.fromkeys(shape.delta_paths))
        for position, early in enumerate(paths):
            parent = early.rpartition(".")[0]
            pairs.update((early, late) for late in paths[position + 1 :] if late.rpartition(".")[0] == parent)
    return pairs
