"""One case of the corpus and the exact bytes that it sends."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from motor.parity.documented import Json

ENDPOINTS: Final[Mapping[str, str]] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_REPEAT: Final = "$repeat"
_MODEL_PLACE: Final = "${model}"
_STREAM_PLACE: Final = "${stream}"
_CASE_KEYS: Final = frozenset(
    {
        "name",
        "tags",
        "endpoint",
        "path",
        "method",
        "headers",
        "body",
        "raw",
        "raw_hex",
        "encoding",
        "salt",
        "modes",
        "alone",
    }
)


class CorpusError(ValueError):
    """A corpus file that can't be used; the message names the file and the case."""


class Mode(StrEnum):
    """How a case is sent: `stream` false, `stream` true, or the bytes of the case as they are."""

    WHOLE = "whole"
    STREAM = "stream"
    VERBATIM = "verbatim"


@dataclass(frozen=True, slots=True)
class WireRequest:
    """The exact request of one case in one mode.

    Attributes:
        method: The HTTP method.
        path: The path below the server's base URL.
        headers: All headers that describe the body.
        body: The bytes of the body.
        is_salted: Whether the body carries a cache salt of its own, so that no prefix cache can answer it.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    is_salted: bool


@dataclass(frozen=True, slots=True)
class Case:
    """One request of the corpus.

    Attributes:
        name: Unique: the file's stem, a slash, and the case's own name.
        tags: The features that the case covers; `bad` marks a request that native refuses.
        path: The path below the server's base URL.
        body: The JSON body without `model` and `stream` (both are filled in unless the case names them), or `None`.
        raw: The bytes to send instead of `body`; `${model}` and `${stream}` are filled in.
        method: The HTTP method.
        headers: The headers that describe the body.
        modes: The modes in which the case is sent.
        is_saltable: Whether a `cache_salt` may be added to `body`.
        is_alone: Whether nothing else may be in flight: native's answers to others depend on this request in the batch.
    """

    name: str
    tags: frozenset[str]
    path: str
    body: dict[str, Json] | None
    raw: bytes | None
    modes: tuple[Mode, ...]
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    is_saltable: bool = True
    is_alone: bool = False

    @property
    def is_bad(self) -> bool:
        """Whether native is expected to refuse the request."""
        return "bad" in self.tags

    def request(self, mode: Mode, model: str, salt: str) -> WireRequest:
        """Return what to send.

        Args:
            mode: One of `modes`.
            model: The served model name to fill in.
            salt: The `cache_salt` to add where the case allows it.
        """
        if self.raw is not None:
            filled = self.raw.replace(_MODEL_PLACE.encode(), model.encode())
            filled = filled.replace(_STREAM_PLACE.encode(), b"true" if mode is Mode.STREAM else b"false")
            return WireRequest(self.method, self.path, self.headers, filled, is_salted=False)
        body: dict[str, Json] = {"model": model, **(self.body or {})}
        if mode is not Mode.VERBATIM:
            body["stream"] = mode is Mode.STREAM
        is_salted = self.is_saltable and "cache_salt" not in body
        if is_salted:
            body["cache_salt"] = salt
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        return WireRequest(self.method, self.path, self.headers, text.encode(), is_salted)


def build_case(theme: str, entry: Mapping[str, Json], defaults: Mapping[str, Json]) -> Case:
    """Build one case from its entry in a corpus file.

    Args:
        theme: The stem of the file.
        entry: The case as written.
        defaults: The file's `defaults`: any key of a case; `tags` are added and `body` is merged.

    Raises:
        CorpusError: The entry has an unknown key, lacks one, or contradicts itself.
    """
    name = f"{theme}/{entry.get('name')}"
    if unknown := entry.keys() - _CASE_KEYS:
        raise CorpusError(f"{name}: unknown keys {sorted(unknown)}")
    settings: dict[str, Json] = {**defaults, **entry}
    body = _built_body(name, defaults.get("body"), entry.get("body"))
    raw = _raw_bytes(name, entry)
    if raw is None and "body" not in entry:
        raise CorpusError(f"{name}: neither body nor raw")
    endpoint = str(settings.get("endpoint", "chat"))
    if endpoint not in ENDPOINTS:
        raise CorpusError(f"{name}: unknown endpoint {endpoint!r}")
    tags = frozenset([*_words(defaults.get("tags")), *_words(entry.get("tags"))])
    return Case(
        name=name,
        tags=tags,
        path=str(settings.get("path", ENDPOINTS[endpoint])),
        body=None if raw is not None else body,
        raw=raw,
        modes=_modes(name, settings, raw),
        method=str(settings.get("method", "POST")),
        headers=_headers(settings.get("headers")),
        # A bad request stays as it is written: native answers before any prefix cache is asked.
        is_saltable=bool(settings.get("salt", "bad" not in tags)),
        is_alone=bool(settings.get("alone", False)),
    )


def _words(value: Json) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []


def _headers(value: Json) -> dict[str, str]:
    """A header that the case sets to null is not sent at all."""
    given = value if isinstance(value, dict) else {}
    headers: dict[str, Json] = {"Content-Type": "application/json", **given}
    return {key: str(header) for key, header in headers.items() if header is not None}


def _modes(name: str, settings: Mapping[str, Json], raw: bytes | None) -> tuple[Mode, ...]:
    words = _words(settings.get("modes"))
    if not words and raw is not None and _STREAM_PLACE.encode() not in raw:
        return (Mode.VERBATIM,)
    try:
        return tuple(Mode(word) for word in words) or (Mode.WHOLE, Mode.STREAM)
    except ValueError as error:
        raise CorpusError(f"{name}: {error}") from error


def _built_body(name: str, common: Json, own: Json) -> dict[str, Json]:
    if own is not None and not isinstance(own, dict):
        raise CorpusError(f"{name}: body must be an object; send anything else with raw")
    body: dict[str, Json] = {**(common if isinstance(common, dict) else {}), **(own or {})}
    return {key: _expanded(value) for key, value in body.items()}


def _expanded(value: Json) -> Json:
    """Replace every `{$repeat: [item, count]}`: a text is repeated, a list is concatenated with itself."""
    if isinstance(value, list):
        return [_expanded(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    repeat = value.get(_REPEAT)
    if isinstance(repeat, list) and len(repeat) == 2 and isinstance(repeat[1], int):
        item = repeat[0]
        if isinstance(item, str | list):
            return item * repeat[1]
    return {key: _expanded(member) for key, member in value.items()}


def _raw_bytes(name: str, entry: Mapping[str, Json]) -> bytes | None:
    try:
        if "raw_hex" in entry:
            return bytes.fromhex(str(entry["raw_hex"]))
        if "raw" in entry:
            return str(entry["raw"]).encode(str(entry.get("encoding", "utf-8")))
        return None
    except (LookupError, ValueError) as error:
        raise CorpusError(f"{name}: {error}") from error
