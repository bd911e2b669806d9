"""Settings from environment variables, because `vllm launch render` has no options for plugins."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

_Value = TypeVar("_Value")

_PREFIX = "MOTOR_LIVE_PARSERS_"
_SWITCH = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """Bounds of what one process keeps.

    Attributes:
        enabled: `MOTOR_LIVE_PARSERS_ENABLE`; off leaves vLLM exactly as it is.
        max_streams: `MOTOR_LIVE_PARSERS_MAX_STREAMS`; streams kept at a time.
        max_tokens: `MOTOR_LIVE_PARSERS_MAX_TOKENS`; prompt, request and output tokens of all kept streams.
        ttl_seconds: `MOTOR_LIVE_PARSERS_TTL_SECONDS`; how long a stream without calls is kept.
    """

    enabled: bool = True
    max_streams: int = 1024
    max_tokens: int = 2_000_000
    ttl_seconds: float = 120.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Settings":
        """Read the settings; what is not set keeps its default.

        Raises:
            ValueError: A value is not of its type or not positive; the message names the variable.
        """
        defaults = cls()
        return cls(
            enabled=_read(environment, "ENABLE", _switch, defaults.enabled),
            max_streams=_read(environment, "MAX_STREAMS", _positive_integer, defaults.max_streams),
            max_tokens=_read(environment, "MAX_TOKENS", _positive_integer, defaults.max_tokens),
            ttl_seconds=_read(environment, "TTL_SECONDS", _positive_number, defaults.ttl_seconds),
        )


def _read(environment: Mapping[str, str], name: str, convert: Callable[[str], _Value], default: _Value) -> _Value:
    text = environment.get(_PREFIX + name, "").strip()
    if not text:
        return default
    try:
        return convert(text)
    except (ValueError, KeyError):
        raise ValueError(f"{_PREFIX}{name} has the invalid value {text!r}") from None


def _switch(text: str) -> bool:
    return _SWITCH[text.lower()]


def _positive_integer(text: str) -> int:
    value = int(text)
    if value <= 0:
        raise ValueError(text)
    return value


def _positive_number(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(text)
    return value
