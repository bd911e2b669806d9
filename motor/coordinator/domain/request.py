"""The client's request, as it came."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Api(StrEnum):
    """The OpenAI APIs that take the token chain."""

    CHAT = "chat"
    COMPLETIONS = "completions"

    @property
    def path(self) -> str:
        """The public path, also the prefix of the Render sidecar's routes."""
        return "/v1/chat/completions" if self is Api.CHAT else "/v1/completions"

    @property
    def id_prefix(self) -> str:
        """What native vLLM puts before the request id in the public `id`."""
        return "chatcmpl-" if self is Api.CHAT else "cmpl-"


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """One OpenAI request; nobody changes it, the body stays what the client sent.

    Attributes:
        request_id: The client's `X-Request-Id` or `request_id`, or ours; never changes, over all attempts.
        peer_id: The same in a form that is safe in HTTP headers and logs.
        api: Which API was called.
        body: The raw bytes.
        fields: The decoded JSON object; empty if the body was not a JSON object (Render refuses those).
        content_type: The client's `Content-Type`, so that Render judges it as native vLLM would.
        forward_headers: Headers that go to every peer (trace context, session).
        tenant: Whose request it is, for flow control.
    """

    request_id: str
    peer_id: str
    api: Api
    body: bytes
    fields: Mapping[str, Any]
    content_type: str | None = None
    forward_headers: Mapping[str, str] = field(default_factory=dict)
    tenant: str = ""

    @property
    def priority(self) -> int:
        """The request's `priority`: lower goes first, as in vLLM."""
        value = self.fields.get("priority")
        return value if isinstance(value, int) else 0

    @property
    def is_stream(self) -> bool:
        """Whether the client asked for server-sent events."""
        return self.flag("stream")

    def flag(self, name: str) -> bool:
        """Return a boolean member as vLLM reads it: `1`, `"true"`, `"on"` and the like are true, absent is false."""
        return is_true(self.fields.get(name))

    @property
    def public_id(self) -> str:
        """The `id` that the client sees in every object of the answer."""
        return self.api.id_prefix + self.request_id


_TRUE_WORDS = frozenset({"1", "true", "t", "yes", "y", "on"})


def is_true(value: object) -> bool:
    """Read a boolean as vLLM's request models do."""
    if isinstance(value, str):
        return value.lower() in _TRUE_WORDS
    return value is True or (isinstance(value, int | float) and value == 1)
