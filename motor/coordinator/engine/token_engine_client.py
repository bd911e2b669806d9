"""HTTP client of token-only engines: `POST /inference/v1/generate`, complete and streamed."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from motor.coordinator.domain.errors import (
    ChoicesUnsupported,
    EngineBroken,
    EngineFailed,
    EngineFault,
    EngineOverloaded,
    EngineRejected,
    EngineTimeout,
    EngineUnreachable,
    MotorError,
    TokenOnlyUnsupported,
)
from motor.coordinator.domain.generation import GenerateChoice, GenerateChunk, GenerateResponse
from motor.coordinator.transport.faults import TransportFault, TransportFaultKind
from motor.coordinator.transport.http_pool import HttpPool, HttpStream
from motor.coordinator.wire.openai import error_of, parse_error
from motor.coordinator.wire.sse import DONE, SseDecoder, SseOverflow

GENERATE_PATH = "/inference/v1/generate"
_TOKEN_ONLY_ABSENT = frozenset({403, 404, 405, 501})
_CHOICES_LIMIT = "max_num_seqs"
"""Generate refuses an `n` over the engine's batch size, which native vLLM takes in turns."""

_STOP_REASON_MEMBER = b'"stop_reason"'
_NOT_NOW = frozenset({408, 429})

_chunk_decoder = msgspec.json.Decoder(GenerateChunk)
_response_decoder = msgspec.json.Decoder(GenerateResponse)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One generate call as it goes over the wire, made by `router.token_only`.

    Attributes:
        request_id: Unique per prompt, attempt and leg; also the `X-Request-Id` header.
        body: The encoded GenerateRequest.
        num_choices: How many choices must have a finish reason at the end.
        headers: Trace, session and data-parallel headers.
    """

    request_id: str
    body: bytes
    num_choices: int
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def all_headers(self) -> dict[str, str]:
        """The headers of the call."""
        return {**self.headers, "Content-Type": "application/json", "X-Request-Id": self.request_id}


@dataclass(frozen=True, slots=True)
class EngineTimeouts:
    """Limits in seconds: connect to first chunk (or complete answer: `request`), and from chunk to chunk."""

    first_token_seconds: float
    inter_token_seconds: float
    request_seconds: float


class TokenEngineClient:
    """Speaks token-only generate to any engine; holds no state of its own.

    Args:
        pool: The HTTP client.
        timeouts: Limits of every call.
        eos_token_id: The tokenizer's end-of-sequence id, if known: an ending by it has no stop reason in native vLLM.
    """

    def __init__(self, pool: HttpPool, timeouts: EngineTimeouts, eos_token_id: int | None = None) -> None:
        self._pool = pool
        self._timeouts = timeouts
        self._eos_token_id = eos_token_id

    async def generate(self, base_url: str, request: EngineRequest) -> GenerateResponse:
        """Return the complete answer.

        Raises:
            EngineRejected: The engine judged the request wrong.
            TokenOnlyUnsupported: The engine has no token-only generate.
            EngineFault: The engine failed.
        """
        try:
            answer = await self._pool.request(
                "POST",
                base_url + GENERATE_PATH,
                body=request.body,
                headers=request.all_headers,
                timeout_seconds=self._timeouts.request_seconds,
            )
        except TransportFault as fault:
            raise _engine_fault(fault) from fault
        if answer.status != 200:
            raise _status_error(answer.status, answer.body)
        try:
            response = _response_decoder.decode(answer.body)
        except msgspec.DecodeError as error:
            raise EngineBroken("the engine's answer is not a GenerateResponse") from error
        for choice in response.choices:
            _settle_stop_reason(choice, answer.body, self._eos_token_id)
        return response

    @asynccontextmanager
    async def stream(self, base_url: str, request: EngineRequest) -> AsyncIterator["EngineStream"]:
        """Open a generate stream; leaving the block early makes the engine abort the request.

        Raises:
            EngineRejected, TokenOnlyUnsupported, EngineFault: As `generate`.
        """
        try:
            async with self._pool.stream(
                "POST",
                base_url + GENERATE_PATH,
                body=request.body,
                headers=request.all_headers,
                head_seconds=self._timeouts.first_token_seconds,
            ) as http:
                if http.status != 200:
                    raise _status_error(http.status, await http.read_all())
                yield EngineStream(http, request.num_choices, self._timeouts, self._eos_token_id)
        except TransportFault as fault:
            raise _engine_fault(fault) from fault


class EngineStream:
    """The chunks of one generate stream; ends after every choice's finish reason, or raises.

    Mutable: the events decoded but not yet taken, the unfinished choices.
    """

    def __init__(
        self, http: HttpStream, num_choices: int, timeouts: EngineTimeouts, eos_token_id: int | None = None
    ) -> None:
        self._http = http
        self._eos_token_id = eos_token_id
        self._timeouts = timeouts
        self._unfinished = set(range(num_choices))

    async def chunks(self) -> AsyncGenerator[GenerateChunk]:
        """Yield the chunks in order.

        Raises:
            EngineFault: Early end, error event, reset, or no chunk in time.
            EngineRejected: An error event of class 4xx (vLLM validates after the 200).
        """
        decoder = SseDecoder()
        idle_seconds = self._timeouts.first_token_seconds
        while packet := await self._next_packet(idle_seconds):
            idle_seconds = self._timeouts.inter_token_seconds
            try:
                events = decoder.feed(packet)
            except SseOverflow as error:
                raise EngineBroken("an event of the engine's stream is too large") from error
            for payload in events:
                if payload != DONE:  # after which the body's end comes at once, and keeps the connection reusable
                    yield self._decode(payload)
        if self._unfinished:
            raise EngineBroken("the engine's stream ended before its finish reason")

    async def _next_packet(self, idle_seconds: float) -> bytes:
        """Read on; a connection that breaks after all finish reasons has done its work."""
        try:
            return await self._http.read_some(idle_seconds)
        except TransportFault:
            if self._unfinished:
                raise
            return b""

    def _decode(self, payload: bytes) -> GenerateChunk:
        try:
            chunk = _chunk_decoder.decode(payload)
        except msgspec.DecodeError as error:
            raise EngineBroken("an event of the engine's stream is not a GenerateResponse chunk") from error
        if chunk.error is not None:
            raise _event_error(chunk.error, payload)
        for choice in chunk.choices:
            if choice.index not in self._unfinished:
                raise EngineBroken("the engine's stream has a choice that was not asked for or has finished")
            if choice.finish_reason is not None:
                self._unfinished.discard(choice.index)
                _settle_stop_reason(choice, payload, self._eos_token_id)
        return chunk


def _settle_stop_reason(choice: GenerateChoice, payload: bytes, eos_token_id: int | None) -> None:
    """Tell the end of a choice as native vLLM does: nothing of the tokenizer's end-of-sequence id, but of any other.

    An engine without a tokenizer tells the former; before 0.32 none tells the latter, and has no member for it.
    """
    if choice.finish_reason != "stop" or eos_token_id is None:
        return
    if choice.token_ids and _STOP_REASON_MEMBER not in payload:
        choice.stop_reason = choice.token_ids[-1]
    if choice.stop_reason == eos_token_id:
        choice.stop_reason = None


def _engine_fault(fault: TransportFault) -> EngineFault:
    if fault.kind is TransportFaultKind.CONNECT:
        return EngineUnreachable("the engine can't be reached")
    if fault.kind is TransportFaultKind.TIMEOUT:
        return EngineTimeout("the engine did not answer in time")
    if fault.kind is TransportFaultKind.PROTOCOL:
        return EngineBroken("the engine's answer is not HTTP")
    return EngineBroken("the connection to the engine broke")


def _status_error(status: int, payload: bytes) -> MotorError:
    body = parse_error(payload)
    is_openai_error = body is not None and b'"error"' in payload
    message = body.message if body is not None else f"the engine answered {status}"
    # An unknown model is 404 with an OpenAI body; an absent route is 404 with {"detail": ...}.
    if status in _TOKEN_ONLY_ABSENT and not (status == 404 and is_openai_error):
        return TokenOnlyUnsupported("the engine has no token-only generate")
    if _CHOICES_LIMIT in message:
        return ChoicesUnsupported("token-only generate makes fewer choices at once than native answers may have")
    if 400 <= status < 500 and status not in _NOT_NOW:
        raw = payload if is_openai_error else None
        return EngineRejected(message, status=status, error_type=body.type if body else None, raw_body=raw)
    return EngineOverloaded(message) if status in (429, 503) else EngineFailed(message)


def _event_error(value: object, payload: bytes) -> MotorError:
    """Map an error event: a 4xx `code` is the request's fault, anything else the engine's."""
    body = error_of({"error": value})
    if body is None:
        return EngineFailed("the engine reported an error")
    if isinstance(body.code, int) and 400 <= body.code < 500 and body.code not in _NOT_NOW:
        rejection = EngineRejected(body.message, status=body.code, error_type=body.type, raw_body=payload)
        rejection.is_event = True
        return rejection
    return EngineFailed(body.message)
