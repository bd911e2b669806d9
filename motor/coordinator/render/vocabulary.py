"""What the Coordinator must know of the model's vocabulary: its size and its markers, from the model's folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from motor.coordinator.telemetry.log import get_logger

_log = get_logger(__name__)
_Content = TypeVar("_Content")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Facts of one model's vocabulary; `None` where they are unknown.

    Attributes:
        size: Number of embedding rows: every legal id is less.
        marker_ids: Added tokens, all that a parser may take for a marker.
        eos_token_id: The tokenizer's own end-of-sequence id.
    """

    size: int | None = None
    marker_ids: frozenset[int] | None = None
    eos_token_id: int | None = None


class _Config(msgspec.Struct):
    vocab_size: int | None = None
    text_config: dict[str, object] | None = None


class _AddedToken(msgspec.Struct):
    id: int
    content: str = ""


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


class _TokenizerConfig(msgspec.Struct):
    eos_token: str | dict[str, Any] | None = None


def load_vocabulary(path: Path | None) -> Vocabulary:
    """Read `config.json` and `tokenizer.json` of a model folder; what can't be read stays unknown, with a log line."""
    if path is None:
        _log.info("vocabulary.unknown", reason="model.path is not set", effect="no batching, engines judge token ids")
        return Vocabulary()
    added = _read(path / "tokenizer.json", _TokenizerFile)
    if added is None:
        return Vocabulary(_read_size(path / "config.json"))
    config = _read(path / "tokenizer_config.json", _TokenizerConfig)
    eos_token = config.eos_token if config is not None else None
    eos_text = eos_token.get("content") if isinstance(eos_token, dict) else eos_token
    return Vocabulary(
        _read_size(path / "config.json"),
        frozenset(token.id for token in added.added_tokens),
        next((token.id for token in added.added_tokens if token.content == eos_text), None),
    )


def _read(file: Path, kind: type[_Content]) -> _Content | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("vocabulary.unreadable", file=file.name, error_type=type(error).__name__)
        return None


def _read_size(file: Path) -> int | None:
    config = _read(file, _Config)
    if config is None:
        return None
    nested = (config.text_config or {}).get("vocab_size")
    return config.vocab_size if config.vocab_size is not None else nested if isinstance(nested, int) else None
