"""Usage details that vLLM's token-only generate doesn't tell its callers, so that nobody in between can pass them on.

They are set aside before two answers are compared, where native tells them and ours tells them nowhere; a wrong number
of ours is still a difference.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from motor.parity.documented import Json

UNTOLD_PATHS: Final[tuple[tuple[str, ...], ...]] = (
    ("usage", "completion_tokens_details"),
    ("usage", "prompt_tokens_details", "created_cache_tokens"),
)


def untold_paths(native: Sequence[Json], ours: Sequence[Json]) -> list[tuple[str, ...]]:
    """Return the paths that any of native's values tells and none of ours, though ours tells what stands around."""
    return [
        path
        for path in UNTOLD_PATHS
        if _is_told(native, path) and _is_told(ours, path[:-1]) and not _is_told(ours, path)
    ]


def set_aside(value: Json, paths: Iterable[tuple[str, ...]]) -> Json:
    """Return a copy of an answer or chunk without the members at `paths`."""
    for path in paths:
        value = _without(value, path)
    return value


def _is_told(values: Sequence[Json], path: tuple[str, ...]) -> bool:
    return any(_at(value, path) is not None for value in values)


def _at(value: Json, path: tuple[str, ...]) -> Json:
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _without(value: Json, path: tuple[str, ...]) -> Json:
    if not isinstance(value, dict) or path[0] not in value:
        return value
    if len(path) == 1:
        return {key: item for key, item in value.items() if key != path[0]}
    return {**value, path[0]: _without(value[path[0]], path[1:])}
