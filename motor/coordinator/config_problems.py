"""Words for what is wrong with a configuration; secrets are never repeated."""

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from motor.coordinator.config import Settings

WITHHELD = "<withheld>"
_SECRET_KEY = re.compile(r"(^|_)(key|secret|token|password|credentials?)$", re.IGNORECASE)
_USER_INFO = re.compile(r"//[^/\s]*@")
_LONGEST_VALUE = 120

_EXPECTATIONS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "int_type": lambda _: "a whole number",
    "int_parsing": lambda _: "a whole number",
    "int_parsing_size": lambda _: "a whole number of fewer digits",
    "int_from_float": lambda _: "a whole number",
    "float_type": lambda _: "a number",
    "float_parsing": lambda _: "a number",
    "finite_number": lambda _: "a finite number",
    "bool_type": lambda _: "true or false",
    "bool_parsing": lambda _: "true or false",
    "string_type": lambda _: "text",
    "path_type": lambda _: "a path",
    "model_type": lambda _: "a section (a mapping)",
    "model_attributes_type": lambda _: "a section (a mapping)",
    "tuple_type": lambda _: "a list",
    "greater_than": lambda facts: f"more than {facts['gt']}",
    "greater_than_equal": lambda facts: f"at least {facts['ge']}",
    "less_than_equal": lambda facts: f"at most {facts['le']}",
    "string_too_short": lambda facts: f"at least {facts['min_length']} character",
    "string_too_long": lambda facts: f"at most {facts['max_length']} characters",
    "string_pattern_mismatch": lambda facts: f"text that matches {facts['pattern']}",
    "too_short": lambda facts: f"at least {facts['min_length']} item",
    "literal_error": lambda facts: facts["expected"],
}


def describe_problem(file: str, details: ErrorDetails, variables: Mapping[tuple[str, ...], str]) -> str:
    """Return one line: where, which key, which value, what was expected.

    Args:
        file: The configuration file.
        details: The validator's finding.
        variables: Environment variables by the key path that they set.
    """
    location = tuple(str(part) for part in details["loc"])
    is_unknown = details["type"] == "extra_forbidden"
    setters = [keys for keys in variables if location[: len(keys)] == keys]
    if is_unknown:
        # A variable may have made the unknown section by setting a key in it.
        setters += [keys for keys in variables if keys[: len(location)] == location]
    place = variables[max(setters, key=len)] if setters else file
    key = ".".join(location)
    if is_unknown:
        return f"{place}: {key}: unknown key; {_hint(location)}"
    if details["type"] == "missing":
        return f"{place}: {key}: missing; it must be given"
    expected = _expectation(details)
    if not key:
        return f"{place}: {expected}"
    return f"{place}: {key}: value {_shown(location, details['input'])}: expected {expected}"


def _expectation(details: ErrorDetails) -> str:
    words = _EXPECTATIONS.get(details["type"])
    if words is not None:
        return words(details.get("ctx", {}))
    return details["msg"].removeprefix("Value error, ")


def _shown(location: tuple[str, ...], value: object) -> str:
    """Return a value as the file has it; what may be, or hold, a secret is left out."""
    if any(_SECRET_KEY.search(part) for part in location):
        return WITHHELD
    if isinstance(value, dict):
        return "{…}"
    if isinstance(value, (list, tuple)):
        return "[…]" if value else "[]"
    text = _USER_INFO.sub(f"//{WITHHELD}@", json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"


def _hint(location: tuple[str, ...]) -> str:
    known = _known_keys(location[:-1])
    close = difflib.get_close_matches(location[-1], known, n=1)
    return f"did you mean {close[0]}?" if close else f"expected one of: {', '.join(known)}"


def _known_keys(location: tuple[str, ...]) -> list[str]:
    """Return the keys of the section at a location."""
    section: type[BaseModel] = Settings
    for part in location:
        if not part.isdigit():
            section = next(_sections_of(section.model_fields[part].annotation), section)
    return list(section.model_fields)


def _sections_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _sections_of(argument)
