"""What the comparison finds: one field that native and ours answer differently."""

import re
from dataclasses import dataclass
from enum import StrEnum

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HEX = re.compile(r"[0-9a-f]{8,}")


class Tolerance(StrEnum):
    """Why a difference is on the documented list (docs/parity.md explains each)."""

    RESPONSE_ID = "response-id"
    CREATED = "created"
    TOOL_CALL_ID = "tool-call-id"
    SYSTEM_FINGERPRINT = "system-fingerprint"
    CHUNK_BOUNDARIES = "chunk-boundaries"
    CACHED_TOKENS = "cached-tokens"
    LOGPROB_NOISE = "logprob-noise"
    TIMING = "timing"
    NOT_TOLD = "not-told"


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that differs.

    Attributes:
        path: Where, as `choices[0].message.content`; names that start with `$` are no JSON field (`$status`).
        native: What native answered, as text.
        ours: What the Coordinator answered, as text.
        tolerance: The entry of the documented list that covers it, or `None` when parity is broken.
    """

    path: str
    native: str
    ours: str
    tolerance: Tolerance | None = None


def id_shape(identifier: str) -> str:
    """Return `identifier` with its random parts replaced by their kind and length."""
    return _HEX.sub(lambda match: f"<hex {len(match[0])}>", _UUID.sub("<uuid>", identifier))
