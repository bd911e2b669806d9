"""One call of vLLM's streaming derender, with a parser that may already have read the history.

vLLM's own function does the work, hit or miss. It reaches the parser and the detokenizer through its first two
arguments only, and there it is given stand-ins: on a miss they pass everything on and remember where parser and
detokenizer ended; on a hit they start from where those ended, and the history is left out, so that nothing is replayed.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionStreamResponse
from vllm.entrypoints.scale_out.token_in_token_out.protocol import DerenderStreamState, GenerateTokensStreamResponse
from vllm.parser import Parser
from vllm.renderers.online_derenderer import OnlineDerenderer

UpstreamFunction = Callable[..., tuple[ChatCompletionStreamResponse, DerenderStreamState]]


@dataclass(frozen=True, slots=True)
class LiveStream:
    """A parser and a detokenizer that have read all output of a stream so far.

    Attributes:
        parser: Mutable; whoever holds the stream owns it.
        detokenizer_state: Decode window after the last token; None before the first token.
        chat_request: The very object that the parser has been called with, in case it keeps something there.
    """

    parser: Parser
    detokenizer_state: DerenderStreamState | None
    chat_request: ChatCompletionRequest


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call to `OnlineDerenderer._derender_chat_stream_parsed`, named and ordered as there."""

    parser_cls: type[Parser]
    model: str
    generate_chunk: GenerateTokensStreamResponse
    state: DerenderStreamState
    chat_request: ChatCompletionRequest
    prompt_tokens: int | None
    prompt_token_ids: list[int] | None

    def replaced(self, **changes: Any) -> dict[str, Any]:
        """The arguments by name, with `changes`."""
        return {field.name: getattr(self, field.name) for field in fields(self)} | changes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What vLLM answers, and the live stream for the next call (None after a finish reason)."""

    chunk: ChatCompletionStreamResponse
    state: DerenderStreamState
    live: LiveStream | None


class _ParserStandIn:
    """Passes calls on to `parser`; the caller may change what it gets, the parser's own objects stay as they were."""

    def __init__(self, parser: Parser, num_replayed_chunks: int) -> None:
        self.parser = parser
        self._num_replayed_chunks = num_replayed_chunks

    def parse_delta(self, *args: Any, **kwargs: Any) -> DeltaMessage | None:
        message = self.parser.parse_delta(*args, **kwargs)
        if self._num_replayed_chunks > 0:
            self._num_replayed_chunks -= 1  # vLLM drops the messages of a replay
            return message
        return None if message is None else message.model_copy(deep=True)


class _DerendererStandIn:
    """What `_derender_chat_stream_parsed` uses of its `self`; records the parser and the last decode window."""

    def __init__(self, derenderer: OnlineDerenderer, live: LiveStream | None, num_replayed_chunks: int) -> None:
        self._derenderer = derenderer
        self._live = live
        self._num_replayed_chunks = num_replayed_chunks
        self.renderer = derenderer.renderer
        self.model_config = derenderer.model_config
        self.parser: Parser | None = live.parser if live else None
        self.detokenizer_state = live.detokenizer_state if live else None

    def parser_class_for(self, parser_class: type[Parser]) -> Callable[..., _ParserStandIn]:
        """What is called in place of `parser_class`: makes a parser only if none is alive."""

        def make_parser(*args: Any, **kwargs: Any) -> _ParserStandIn:
            if self.parser is None:
                self.parser = parser_class(*args, **kwargs)
            return _ParserStandIn(self.parser, self._num_replayed_chunks)

        return make_parser

    def _resolve_chat_template_kwargs(self, chat_request: ChatCompletionRequest) -> dict[str, Any]:
        # Read by the parser's constructor only.
        return {} if self._live else self._derenderer._resolve_chat_template_kwargs(chat_request)

    def _detokenize_delta(
        self, tokenizer: Any, delta_token_ids: list[int], state: DerenderStreamState, **options: Any
    ) -> tuple[str, DerenderStreamState]:
        # Within a call the recorded window is the given one; on a hit the given first one is the prompt's, long past.
        text, self.detokenizer_state = self._derenderer._detokenize_delta(
            tokenizer, delta_token_ids, self.detokenizer_state or state, **options
        )
        return text, self.detokenizer_state


def derender(upstream: UpstreamFunction, derenderer: OnlineDerenderer, call: Call, live: LiveStream | None) -> Outcome:
    """Answer `call` with vLLM's function `upstream`.

    Args:
        upstream: `OnlineDerenderer._derender_chat_stream_parsed` as vLLM defines it.
        derenderer: The object that it is called for.
        call: Its arguments.
        live: A stream that has read exactly the history in `call.state`; used up by this call. None replays.

    Raises:
        Exception: Whatever `upstream` raises; `live` is lost then.
    """
    state = call.state if live is None else _without_history(call.state)
    chat_request = call.chat_request if live is None else live.chat_request
    stand_in = _DerendererStandIn(derenderer, live, len(state.output_chunk_lens))
    chunk, new_state = upstream(
        stand_in,
        **call.replaced(parser_cls=stand_in.parser_class_for(call.parser_cls), state=state, chat_request=chat_request),
    )
    if live is not None:
        new_state = _with_history_before(new_state, call.state)
    choices = call.generate_chunk.choices
    if stand_in.parser is None or (choices and choices[0].finish_reason is not None):
        return Outcome(chunk, new_state, None)
    return Outcome(chunk, new_state, LiveStream(stand_in.parser, stand_in.detokenizer_state, chat_request))


def _without_history(state: DerenderStreamState) -> DerenderStreamState:
    return state.model_copy(update={"output_token_ids": [], "output_chunk_lens": []})


def _with_history_before(state: DerenderStreamState, earlier: DerenderStreamState) -> DerenderStreamState:
    return state.model_copy(
        update={
            "output_token_ids": earlier.output_token_ids + state.output_token_ids,
            "output_chunk_lens": earlier.output_chunk_lens + state.output_chunk_lens,
        }
    )
