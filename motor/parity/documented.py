"""The documented list: which differing values don't break parity.

Every rule asks for a shape, so that a missing `id`, a `created` of another type or a tool-call id without its prefix
still counts as a difference.
"""

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from motor.parity.difference import Tolerance, id_shape

LOGPROB_TOLERANCE: Final = 1e-3
"""Natural-log units. The order of float additions depends on what else is in the batch."""

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
_Rule: TypeAlias = tuple[re.Pattern[str], Callable[[Json, Json], bool], Tolerance]

_INDEX = re.compile(r"\[\d+\]")


def _same_id_shape(native: Json, ours: Json) -> bool:
    return isinstance(native, str) and isinstance(ours, str) and id_shape(native) == id_shape(ours)


def _both_integers(native: Json, ours: Json) -> bool:
    return type(native) is int and type(ours) is int


def _both_fingerprints(native: Json, ours: Json) -> bool:
    return all(value is None or isinstance(value, str) for value in (native, ours))


def _close_floats(native: Json, ours: Json) -> bool:
    return isinstance(native, float) and isinstance(ours, float) and abs(native - ours) <= LOGPROB_TOLERANCE


def _both_measured(native: Json, ours: Json) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in (native, ours))


def _both_cache_counts(native: Json, ours: Json) -> bool:
    return all(value is None or _both_integers(value, 0) or isinstance(value, dict) for value in (native, ours))


_RULES: Final[tuple[_Rule, ...]] = (
    (re.compile(r"id"), _same_id_shape, Tolerance.RESPONSE_ID),
    (re.compile(r"created"), _both_integers, Tolerance.CREATED),
    (re.compile(r"choices\[\]\.(message|delta)\.tool_calls\[\]\.id"), _same_id_shape, Tolerance.TOOL_CALL_ID),
    (re.compile(r"system_fingerprint"), _both_fingerprints, Tolerance.SYSTEM_FINGERPRINT),
    (re.compile(r"metrics\..+"), _both_measured, Tolerance.TIMING),
    (re.compile(r".*logprob.*", re.DOTALL), _close_floats, Tolerance.LOGPROB_NOISE),
)
_CACHE_RULE: Final[_Rule] = (
    re.compile(r"(choices\[\]\.)?usage\.prompt_tokens_details(\.cached_tokens|\.created_cache_tokens)?"),
    _both_cache_counts,
    Tolerance.CACHED_TOKENS,
)


def tolerance_of(path: str, native: Json, ours: Json, *, is_cache_comparable: bool) -> Tolerance | None:
    """Return the entry of the documented list that covers these two values at `path`, or `None`.

    Args:
        path: The path of a `Difference`.
        native: Native's value.
        ours: The Coordinator's value.
        is_cache_comparable: Whether the request was sure to meet equally filled prefix caches on both sides.
    """
    general_path = _INDEX.sub("[]", path)
    rules = _RULES if is_cache_comparable else (*_RULES, _CACHE_RULE)
    for pattern, covers, tolerance in rules:
        if pattern.fullmatch(general_path) and covers(native, ours):
            return tolerance
    return None
