"""What can go wrong between us and a peer, free of the HTTP library's own exceptions."""

from enum import StrEnum


class TransportFaultKind(StrEnum):
    """Where on the way it broke."""

    CONNECT = "connect"
    TIMEOUT = "timeout"
    RESET = "reset"
    PROTOCOL = "protocol"


class TransportFault(Exception):
    """A request got no complete HTTP answer.

    Attributes:
        kind: What happened.
        has_response: Whether the peer's response had begun.
    """

    def __init__(self, kind: TransportFaultKind, detail: str, *, has_response: bool = False) -> None:
        super().__init__(detail)
        self.kind = kind
        self.has_response = has_response
