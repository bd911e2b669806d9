"""Reads the configuration file and says precisely what is wrong with it."""

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from motor.coordinator.config import SECRET_KEYS, Settings

ENVIRONMENT_PREFIX = "MOTOR_"


class ConfigError(Exception):
    """The configuration can't be used; the message has a line per problem."""


def load_settings(path: Path, environ: Mapping[str, str]) -> Settings:
    """Return the settings of a YAML or JSON file, `MOTOR_SECTION__KEY` variables laid over it.

    Raises:
        ConfigError: The file can't be read, or says something that can't be used.
    """
    values = _read(path)
    sources: dict[tuple[str, ...], str] = {}
    for name, text in sorted(environ.items()):
        if name.startswith(ENVIRONMENT_PREFIX) and "__" in name:
            keys = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
            _lay_over(values, keys, text, name)
            sources[keys] = name
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        lines = [_problem(path, details, sources) for details in error.errors(include_url=False)]
        raise ConfigError("\n".join(lines)) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
        # YAML is a superset of JSON as far as configuration files go; one parser for both.
        values = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text") from error
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        raise ConfigError(f"{path}{line}: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected sections (a mapping) at the top, got {type(values).__name__}")
    return values


class _StrictLoader(yaml.SafeLoader):
    """A SafeLoader to which a key that stands there twice is an error, and `on` and `off` are words."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping, refusing doubled keys."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key} stands twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 reads on/off/yes/no as booleans, YAML 1.2 as words; `context_budget_mode: on` is a word here.
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool" or first in "tTfF"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _lay_over(values: dict[str, Any], keys: tuple[str, ...], text: str, name: str) -> None:
    """Set one value; the text is read as JSON where it is JSON, so that numbers and lists can be given."""
    for key in keys[:-1]:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{name}: {key} is not a section")
    try:
        values[keys[-1]] = json.loads(text)
    except ValueError:
        values[keys[-1]] = text


def _problem(path: Path, details: ErrorDetails, sources: Mapping[tuple[str, ...], str]) -> str:
    location = tuple(str(part) for part in details["loc"])
    place = sources.get(location, str(path))
    key = ".".join(location)
    if details["type"] == "extra_forbidden":
        known = _known_keys(location[:-1])
        close = difflib.get_close_matches(location[-1], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected one of: {', '.join(known)}"
        return f"{place}: {key}: unknown key; {hint}"
    if details["type"] == "missing":
        return f"{place}: {key}: missing; it must be given"
    expected = details["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if not key:
        return f"{place}: {expected}"
    value = "<withheld>" if SECRET_KEYS.search(location[-1]) else json.dumps(details["input"], default=str)
    return f"{place}: {key}: value {value}: expected {expected}"


def _known_keys(location: tuple[str, ...]) -> list[str]:
    """Return the keys of the section at a location."""
    section: type[BaseModel] = Settings
    for part in location:
        if part.isdigit():
            continue
        section = next(_sections_of(section.model_fields[part].annotation), section)
    return list(section.model_fields)


def _sections_of(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _sections_of(argument)
