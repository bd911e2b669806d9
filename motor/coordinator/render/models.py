"""The vocabulary of tokenized serving: what Render made of a request, and the ports that the router sees."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import msgspec

from motor.coordinator.domain.generation import GenerateChunk
from motor.coordinator.domain.request import ClientRequest
from motor.coordinator.domain.tokens import PhysicalTokenIds, SemanticTokenIds


class TokenizerSource(StrEnum):
    """Who made the prompt's token ids."""

    RENDER = "render"
    LOCAL = "local"
    LENGTH = "length"
    """Nobody: there are no ids, and how many there would be is estimated from the request's length."""


@dataclass(frozen=True, slots=True)
class TokenizedRequest:
    """One prompt, ready for token-only generate; budget and obfuscation return changed copies.

    Attributes:
        prompt_index: Position in the client's prompt list.
        semantic_ids: The exact prompt, what the tokenizer means.
        sampling_params: Render's `sampling_params`, with `max_tokens` always present.
        metadata: Every other member of Render's GenerateRequest, undecoded.
        tokenizer_source: Who made the ids.
        physical_ids: What the engine must see; set iff obfuscation is on.
    """

    prompt_index: int
    semantic_ids: SemanticTokenIds
    sampling_params: Mapping[str, Any]
    metadata: Mapping[str, msgspec.Raw] = field(default_factory=dict)
    tokenizer_source: TokenizerSource = TokenizerSource.RENDER
    physical_ids: PhysicalTokenIds | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt in tokens."""
        return len(self.semantic_ids)

    @property
    def num_choices(self) -> int:
        """`n`: how many answers the engine makes for this prompt."""
        return int(self.sampling_params.get("n") or 1)

    @property
    def max_tokens(self) -> int:
        """The most tokens each choice may have."""
        return int(self.sampling_params["max_tokens"])


@dataclass(frozen=True, slots=True)
class TokenizedBatch:
    """All prompts of one client request; a single prompt is a batch of 1."""

    client: ClientRequest
    prompts: tuple[TokenizedRequest, ...]

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all prompts."""
        return sum(prompt.num_prompt_tokens for prompt in self.prompts)

    @property
    def num_choices(self) -> int:
        """Choices of all prompts, as the client counts them."""
        return sum(prompt.num_choices for prompt in self.prompts)

    @property
    def num_output_tokens(self) -> int:
        """The most output tokens that all choices may have."""
        return sum(prompt.num_choices * prompt.max_tokens for prompt in self.prompts)


@dataclass(frozen=True, slots=True)
class FallbackPrompts:
    """What is known of a request without Render: enough to schedule it, not to build a token-only request.

    Attributes:
        num_prompt_tokens: Prompt tokens of all prompts.
        tokenizer_source: `local`, or `length` for an estimate.
        prompts: The ids of each prompt; empty for an estimate.
    """

    num_prompt_tokens: int
    tokenizer_source: TokenizerSource
    prompts: tuple[SemanticTokenIds, ...] = ()


class DerenderedChoice(msgspec.Struct, kw_only=True):
    """The choice of a streamed derender answer; chat has `delta`, completions have `text`."""

    index: int = 0
    delta: dict[str, Any] | None = None
    text: str | None = None
    finish_reason: str | None = None


class DerenderedChunk(msgspec.Struct, kw_only=True):
    """What streaming derender made of one generate chunk."""

    choices: Sequence[DerenderedChoice] = ()


class DerenderChunkAnswer(msgspec.Struct, kw_only=True):
    """Answer of a streamed derender call: the chunk, the state for the next call, kept undecoded, and what names it."""

    chunk: DerenderedChunk
    stream_state: msgspec.Raw = msgspec.Raw(b"null")
    continuation: str | None = None


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """What the client has of one prompt.

    Attributes:
        committed_ids: Semantic ids whose text it has, of a prompt with one choice.
        is_request_visible: Whether it has anything at all of the request.
        num_prompts: Of the whole request.
        has_content: Whether it has text after the reasoning.
        is_finished: Whether it has every choice's finish reason.
    """

    committed_ids: tuple[int, ...] = ()
    is_request_visible: bool = False
    num_prompts: int = 1
    has_content: bool = False
    is_finished: bool = False


class ChunkSink(Protocol):
    """Where attempts push the engine's chunks of one prompt."""

    def begin_attempt(self) -> None:
        """An attempt begins here."""

    async def end_attempt(self) -> None:
        """The attempt failed: show what has come of it; take back what never became visible."""

    def progress(self) -> StreamProgress:
        """Return what the client has."""

    def is_finished(self) -> bool:
        """Whether the client has every choice's finish reason, so that no more chunks are wanted."""

    async def opened(self) -> None:
        """The engine has accepted the request; returns when every sibling stream is open as well."""

    async def put(self, chunk: GenerateChunk) -> None:
        """Take the next chunk; waits while the client is slow, which stops reading from the engine."""
