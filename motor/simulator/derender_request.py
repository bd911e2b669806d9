"""The bodies of the derender endpoints and the state that a client carries between calls."""

from typing import Any, TypeVar

import msgspec

from motor.simulator.answers import schema_error
from motor.simulator.detokenizer import DetokenizerState

_Body = TypeVar("_Body")


class GeneratedChoice(msgspec.Struct, kw_only=True):
    """One choice of a generate answer or event."""

    index: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None
    logprobs: dict[str, Any] | None = None


class Generated(msgspec.Struct, kw_only=True):
    """A generate answer or event."""

    request_id: str
    choices: list[GeneratedChoice]
    usage: dict[str, Any] | None = None
    prompt_logprobs: list[Any] | None = None
    prompt_token_ids: list[int] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None


class StreamState(msgspec.Struct, kw_only=True):
    """vLLM's stream state, whole: the plain path uses the first half, the parser path the second."""

    prev_tokens: list[str] = []
    prefix_offset: int = 0
    read_offset: int = 0
    role_sent: bool = False
    logprob_context_token_ids: list[int] = []
    logprob_text_offset: int = 0
    output_token_ids: list[int] = []
    output_chunk_lens: list[int] = []
    tools_streamed: bool = False
    last_tool_call_ids: list[str] = []

    @property
    def detokenizer(self) -> DetokenizerState:
        """Where decoding stands."""
        return DetokenizerState(tuple(self.prev_tokens[self.prefix_offset :]), self.read_offset - self.prefix_offset)

    def with_detokenizer(self, state: DetokenizerState) -> "StreamState":
        """Return a copy with another decoding state."""
        changes = {"prev_tokens": list(state.tokens), "prefix_offset": 0, "read_offset": state.num_read}
        return msgspec.structs.replace(self, **changes)


class DerenderStreamRequest(msgspec.Struct, kw_only=True):
    """A streamed call: one generate event and the state after the one before."""

    generate_chunk: Generated
    model: str | None = None
    stream_state: StreamState | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: list[int] | None = None
    chat_request: dict[str, Any] | None = None
    completion_request: dict[str, Any] | None = None


class DerenderChatRequest(msgspec.Struct, kw_only=True):
    """A complete chat answer."""

    generate_response: Generated
    model: str | None = None
    prompt_tokens: int | None = None
    prompt_token_ids: list[int] | None = None
    chat_request: dict[str, Any] | None = None


class DerenderCompletionRequest(msgspec.Struct, kw_only=True):
    """The complete answers of all prompts."""

    generate_responses: list[Generated]
    model: str | None = None
    prompt_tokens: list[int] | None = None
    prompt_token_ids: list[list[int] | None] | None = None
    completion_request: dict[str, Any] | None = None


def convert(body: dict[str, Any], kind: type[_Body]) -> _Body:
    """Read a body.

    Raises:
        RequestRejected: It doesn't fit.
    """
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        raise schema_error("body" + place.rstrip("`"), message) from error
