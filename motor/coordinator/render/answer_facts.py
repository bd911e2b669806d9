"""What answers say about the deployment rather than about the request."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Learned from the peers.

    Attributes:
        system_fingerprint: What native answers of these engines carry; `None` while unknown.
        has_parser: Whether the sidecar has a reasoning or tool parser.
    """

    system_fingerprint: str | None = None
    has_parser: bool = False
