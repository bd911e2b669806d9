"""What the Coordinator must know of the model's vocabulary: its size and its markers, from the model's folder."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from motor.coordinator.telemetry.log import get_logger

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Facts of one model's vocabulary; `None` where they are unknown.

    Attributes:
        size: Number of embedding rows: every legal id is less.
        marker_ids: Added tokens, all that a parser may take for a marker.
    """

    size: int | None = None
    marker_ids: frozenset[int] | None = None


class _Config(msgspec.Struct):
    vocab_size: int | None = None
    text_config: dict[str, object] | None = None


class _AddedToken(msgspec.Struct):
    id: int


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


def load_vocabulary(path: Path | None) -> Vocabulary:
    """Read `config.json` and `tokenizer.json` of a model folder; what can't be read stays unknown, with a log line."""
    if path is None:
        _log.info("vocabulary.unknown", reason="model.path is not set", effect="no batching, engines judge token ids")
        return Vocabulary()
    return Vocabulary(_read_size(path / "config.json"), _read_markers(path / "tokenizer.json"))


def _read_size(file: Path) -> int | None:
    try:
        config = msgspec.json.decode(file.read_bytes(), type=_Config)
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("vocabulary.unreadable", file=file.name, error_type=type(error).__name__)
        return None
    nested = (config.text_config or {}).get("vocab_size")
    return config.vocab_size if config.vocab_size is not None else nested if isinstance(nested, int) else None


def _read_markers(file: Path) -> frozenset[int] | None:
    try:
        tokenizer = msgspec.json.decode(file.read_bytes(), type=_TokenizerFile)
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("vocabulary.unreadable", file=file.name, error_type=type(error).__name__)
        return None
    return frozenset(token.id for token in tokenizer.added_tokens)
