"""Reads the configuration file and says precisely what is wrong with it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from motor.coordinator.config import Settings
from motor.coordinator.config_problems import describe_problem

ENVIRONMENT_PREFIX = "MOTOR_"


class ConfigError(Exception):
    """The configuration can't be used; the message has a line per problem."""


def load_settings(path: Path, environ: Mapping[str, str]) -> Settings:
    """Return the settings of a file, the environment's variables laid over it.

    `MOTOR_API__PORT` sets `api.port`, `MOTOR_DEPLOY_MODE` sets `deploy_mode`. A value that begins like a JSON list or
    object is read as one, any other is text that the key's type judges. Other programs have variables that begin with
    `MOTOR_` too: one without `__` that names no key is not ours.

    Args:
        path: A JSON file if it ends with `.json`, else a YAML file.
        environ: The environment.

    Raises:
        ConfigError: The file can't be read, or says something that can't be used.
    """
    values = _read(path)
    sources: dict[tuple[str, ...], str] = {}
    problems = []
    for name, text in sorted(environ.items()):
        keys = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__"))
        if name.startswith(ENVIRONMENT_PREFIX) and (len(keys) > 1 or keys[0] in Settings.model_fields):
            sources[keys] = name
            problem = _lay_over(values, keys, text)
            if problem is not None:
                problems.append(f"{name}: {problem}")
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        problems += [describe_problem(str(path), details, sources) for details in error.errors(include_url=False)]
        raise ConfigError("\n".join(problems)) from error
    if problems:
        raise ConfigError("\n".join(problems))
    return settings


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        values = _parse_json(text) if path.suffix == ".json" else yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}: line {error.lineno}: not JSON: {error.msg}") from error
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark is not None else ""
        raise ConfigError(f"{path}: {line}not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected sections, such as `model:`, at the top")
    return values


def _parse_json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, value in pairs:
            if key in values:
                raise ValueError(f"the key {key} is there twice")
            values[key] = value
        return values

    return json.loads(text, object_pairs_hook=unique)


class _StrictLoader(yaml.SafeLoader):
    """A SafeLoader to which a key that is there twice is an error, and in which words stay words."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping, refusing doubled keys."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key} is there twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 reads on/off/yes/no as booleans and 2026-01-01 as a date, YAML 1.2 reads both as text;
# `context_budget_mode: on` is a word here, and so is a model's name that looks like a date.
_StrictLoader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag != "tag:yaml.org,2002:timestamp" and (tag != "tag:yaml.org,2002:bool" or first in "tTfF")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _lay_over(values: dict[str, Any], keys: tuple[str, ...], text: str) -> str | None:
    """Set one value; return what is wrong with it, or `None`."""
    for depth, key in enumerate(keys[:-1], start=1):
        if not isinstance(values.get(key, {}), dict):
            return f"{'.'.join(keys[:depth])}: not a section, its keys can't be set one by one"
        values = values.setdefault(key, {})
    if not text.lstrip().startswith(("[", "{")):
        values[keys[-1]] = text
        return None
    try:
        values[keys[-1]] = _parse_json(text)
    except ValueError as error:
        return f"{'.'.join(keys)}: not JSON: {error}"
    return None
