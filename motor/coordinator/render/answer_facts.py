"""What answers say about the deployment rather than about the request."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AnswerFacts:
    """Learned from the peers.

    Attributes:
        system_fingerprint: What native answers of these engines carry; `None` while unknown.
        has_parser: Whether the sidecar has a reasoning or tool parser.
        shows_cut_characters: Whether complete answers end in U+FFFD where a character lacks its last ids; native vLLM
            leaves it out.
    """

    system_fingerprint: str | None = None
    has_parser: bool = False
    shows_cut_characters: bool = False
