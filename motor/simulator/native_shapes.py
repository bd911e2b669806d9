"""The JSON of native chat and text completions, complete and streamed."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from motor.simulator.answers import encode
from motor.simulator.generate_events import event


class Shape(Protocol):
    """One kind of native answer."""

    def opening(self, index: int) -> bytes:
        """Return the event that opens a choice's stream; may be empty."""
        ...

    def chunk(self, index: int, text: str, finish_reason: str | None, stop_reason: int | str | None) -> bytes:
        """Return a choice's event."""
        ...

    def usage_event(self, usage: Mapping[str, Any]) -> bytes:
        """Return the event that ends a stream with `include_usage`."""
        ...

    def complete(
        self, choices: Sequence[tuple[str, str | None, int | str | None]], usage: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the whole answer; a choice is its text, finish reason and stop reason."""
        ...


class _Envelope:
    """The fields around the choices.

    Args:
        answer_id: The answer's id.
        kind: The `object` of a streamed chunk.
        created: Seconds since the epoch.
        model: The served name.
        fingerprint: `system_fingerprint`.
        has_usage: Whether a usage event ends the stream and takes the fingerprint.
    """

    def __init__(
        self, answer_id: str, kind: str, created: int, model: str, fingerprint: str, *, has_usage: bool
    ) -> None:
        self.fields = {"id": answer_id, "object": kind, "created": created, "model": model}
        self.fingerprint = fingerprint
        head = b"data: " + encode(self.fields)[:-1]
        self.head = head + b',"choices":[{"index":'
        self.end = b"}]}\n\n"
        self.last = self.end if has_usage else b'}],"system_fingerprint":' + encode(fingerprint) + b"}\n\n"

    def usage_event(self, usage: Mapping[str, Any]) -> bytes:
        """Return the usage event."""
        return event({**self.fields, "choices": [], "usage": usage, "system_fingerprint": self.fingerprint})


class ChatShape(_Envelope):
    """Chat completions."""

    def __init__(self, answer_id: str, created: int, model: str, fingerprint: str, *, has_usage: bool) -> None:
        super().__init__(answer_id, "chat.completion.chunk", created, model, fingerprint, has_usage=has_usage)

    def opening(self, index: int) -> bytes:
        """Return the chunk with the role."""
        opening = b'%b%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return opening % (self.head, index) + b',"prompt_token_ids":null,"prompt_text":null}\n\n'

    def chunk(self, index: int, text: str, finish_reason: str | None, stop_reason: int | str | None) -> bytes:
        """Return a content chunk; the one with the finish reason has an empty delta where nothing is left to say."""
        if finish_reason is None:
            tail = b'},"logprobs":null,"finish_reason":null,"token_ids":null'
            return b'%b%d,"delta":{"content":%b%b%b' % (self.head, index, encode(text), tail, self.end)
        delta = encode({"content": text} if text else {})
        reasons = (encode(finish_reason), encode(stop_reason))
        tail = b'"logprobs":null,"finish_reason":%b,"stop_reason":%b,"token_ids":null' % reasons
        return b'%b%d,"delta":%b,%b%b' % (self.head, index, delta, tail, self.last)

    def complete(
        self, choices: Sequence[tuple[str, str | None, int | str | None]], usage: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the whole answer with every field."""
        return {
            **self.fields,
            "object": "chat.completion",
            "choices": [_chat_choice(index, *choice) for index, choice in enumerate(choices)],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": usage,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }


class CompletionShape(_Envelope):
    """Text completions."""

    def __init__(self, answer_id: str, created: int, model: str, fingerprint: str, *, has_usage: bool) -> None:
        super().__init__(answer_id, "text_completion", created, model, fingerprint, has_usage=has_usage)

    def opening(self, index: int) -> bytes:
        """Return nothing: completions have no role chunk."""
        del index
        return b""

    def chunk(self, index: int, text: str, finish_reason: str | None, stop_reason: int | str | None) -> bytes:
        """Return a text chunk."""
        reasons = (encode(finish_reason), encode(stop_reason))
        tail = (
            b',"logprobs":null,"finish_reason":%b,"stop_reason":%b,"prompt_token_ids":null,"token_ids":null' % reasons
        )
        end = self.end if finish_reason is None else self.last
        return b'%b%d,"text":%b%b%b' % (self.head, index, encode(text), tail, end)

    def complete(
        self, choices: Sequence[tuple[str, str | None, int | str | None]], usage: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the whole answer with every field."""
        return {
            **self.fields,
            "choices": [_completion_choice(index, *choice) for index, choice in enumerate(choices)],
            "service_tier": None,
            "system_fingerprint": self.fingerprint,
            "usage": usage,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }


def _chat_choice(index: int, text: str, finish_reason: str | None, stop_reason: int | str | None) -> dict[str, Any]:
    message = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
        "token_ids": None,
        "routed_experts": None,
    }


def _completion_choice(
    index: int, text: str, finish_reason: str | None, stop_reason: int | str | None
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }
