"""Many choices, one client stream: envelopes, global indices, usage and the single `[DONE]`, without I/O.

Shapes are native vLLM's: only members that it sets, in its order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from motor.coordinator.domain.request import Api, ClientRequest, is_true
from motor.coordinator.render.prompt_stream import ChoiceEvent
from motor.coordinator.wire.openai import encode_json
from motor.coordinator.wire.sse import DONE_EVENT, encode_event


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """What the client wants besides text.

    Attributes:
        includes_usage: A usage chunk at the end.
        is_usage_continuous: Usage so far on every chunk.
        returns_prompt_ids: `return_token_ids`, for the prompt.
        returns_token_ids: The same for the output, unless hidden reasoning could be read from it.
        role: The role of the answer.
        echoes: `echo`: the answer begins with the prompt.
    """

    includes_usage: bool = False
    is_usage_continuous: bool = False
    returns_prompt_ids: bool = False
    returns_token_ids: bool = False
    role: str = "assistant"
    echoes: bool = False

    @classmethod
    def of(cls, client: ClientRequest, *, is_metadata_hidden: bool = False) -> "StreamOptions":
        """Read the options of a request that Render has validated."""
        returns_ids = client.flag("return_token_ids")
        options = client.fields.get("stream_options") or {}
        includes_usage = is_true(options.get("include_usage"))
        return cls(
            includes_usage=includes_usage,
            is_usage_continuous=includes_usage and is_true(options.get("continuous_usage_stats")),
            returns_prompt_ids=returns_ids,
            returns_token_ids=returns_ids and not is_metadata_hidden,
            role=answer_role(client),
            echoes=client.flag("echo"),
        )


def answer_role(client: ClientRequest) -> str:
    """Return the role of the answer: the last message's when it is being continued."""
    messages = client.fields.get("messages")
    if client.fields.get("add_generation_prompt") is False and messages:
        return str(messages[-1].get("role", "assistant"))
    return "assistant"


class ChoiceMerge:
    """Numbers and frames the events of all choices; mutable: `_is_open`, `_begun`, `_num_completion`,
    `_prompt_details`.

    Args:
        client: The request.
        prompts: Token ids of each prompt.
        num_choices: `n`, choices per prompt.
        created: Unix time in seconds, one for the whole stream.
        model: The name that the client is told.
        options: What the client wants.
        echoed: What each choice repeats, by global index; empty strings without `echo`.
        system_fingerprint: Of the engines; `None` if unknown.
    """

    def __init__(
        self,
        client: ClientRequest,
        prompts: Sequence[Sequence[int]],
        num_choices: int,
        *,
        created: int,
        model: str,
        options: StreamOptions,
        echoed: Sequence[str] = (),
        system_fingerprint: str | None = None,
    ) -> None:
        self._echoed = list(echoed) or [""] * (len(prompts) * num_choices)
        self._fingerprint = b"" if system_fingerprint is None else encode_json(system_fingerprint)
        self._begun: set[int] = set()
        self._api = client.api
        self._prompts = prompts
        self._num_choices = num_choices
        self._options = options
        kind = "chat.completion.chunk" if self._api is Api.CHAT else "text_completion"
        envelope = {"id": client.public_id, "object": kind, "created": created, "model": model}
        self._head = encode_json(envelope)[:-1] + b',"choices":['
        self._is_open = False
        self._num_completion = [0] * (len(prompts) * num_choices)
        self._prompt_details: dict[str, Any] | None = None

    def opening(self) -> bytes:
        """Return what comes before the first event: the role chunk of each choice; empty from the second call on."""
        if self._is_open:
            return b""
        self._is_open = True
        if self._api is Api.COMPLETIONS:
            return b""
        ids = list(self._prompts[0]) if self._options.returns_prompt_ids else None
        chunks = []
        for index in range(self._num_choices):
            choice = {
                "index": index,
                "delta": {"role": self._options.role, "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
            tail = (
                self._continuous_usage(index, 0) + b',"prompt_token_ids":' + encode_json(ids) + b',"prompt_text":null'
            )
            chunks.append(self._event(encode_json(choice), tail))
        chunks.extend(self._echo_chunk(index) for index, text in enumerate(self._echoed) if text)
        return b"".join(chunks)

    def _echo_chunk(self, index: int) -> bytes:
        delta = {"content": self._echoed[index]}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._event(encode_json(choice), self._continuous_usage(index, 0))

    def event(self, prompt_index: int, choice_index: int, event: ChoiceEvent) -> bytes:
        """Return one framed chunk with the choice's global index."""
        index = prompt_index * self._num_choices + choice_index
        self._num_completion[index] += len(event.token_ids)
        choice = self._chat_choice(index, event) if self._api is Api.CHAT else self._text_choice(index, event)
        tail = self._continuous_usage(index, self._num_completion[index])
        if event.finish_reason is not None and self._fingerprint and not self._options.includes_usage:
            tail = b',"system_fingerprint":' + self._fingerprint + tail
        return self._event(encode_json(choice), tail)

    def skip(self, prompt_index: int, choice_index: int, num_tokens: int) -> None:
        """Count the tokens of a chunk that shows nothing; a negative number takes them back."""
        self._num_completion[prompt_index * self._num_choices + choice_index] += num_tokens

    def take_prompt_details(self, details: dict[str, Any] | None) -> None:
        """Remember `prompt_tokens_details` of the first engine answer that has them."""
        if self._prompt_details is None:
            self._prompt_details = details

    def closing(self) -> bytes:
        """Return the usage chunk, if it was asked for, and `[DONE]`."""
        if not self._options.includes_usage:
            return DONE_EVENT
        usage = _usage(sum(map(len, self._prompts)), sum(self._num_completion))
        if self._prompt_details is not None:
            usage["prompt_tokens_details"] = {k: v for k, v in self._prompt_details.items() if v is not None}
        return self._event(b"", self._usage_tail(encode_json(usage))) + DONE_EVENT

    def _usage_tail(self, usage: bytes) -> bytes:
        fingerprint = b',"system_fingerprint":' + self._fingerprint if self._fingerprint else b""
        return b',"usage":' + usage + fingerprint

    def _event(self, choice: bytes, tail: bytes) -> bytes:
        return encode_event(b"".join((self._head, choice, b"]", tail, b"}")))

    def _continuous_usage(self, index: int, num_completion: int) -> bytes:
        if not self._options.is_usage_continuous:
            return b""
        num_prompt = len(self._prompts[index // self._num_choices])
        return b',"usage":' + encode_json(_usage(num_prompt, num_completion))

    def _chat_choice(self, index: int, event: ChoiceEvent) -> dict[str, Any]:
        choice: dict[str, Any] = {
            "index": index,
            "delta": event.delta or {},
            "logprobs": event.logprobs,
            "finish_reason": event.finish_reason,
        }
        if event.finish_reason is not None:
            choice["stop_reason"] = event.stop_reason
        choice["token_ids"] = event.token_ids if self._options.returns_token_ids else None
        return choice

    def _text_choice(self, index: int, event: ChoiceEvent) -> dict[str, Any]:
        returns_ids = self._options.returns_token_ids
        is_first = index not in self._begun
        self._begun.add(index)
        returns_prompt = is_first and (returns_ids or self._options.echoes)
        return {
            "index": index,
            "text": (self._echoed[index] if is_first else "") + (event.text or ""),
            "logprobs": event.logprobs,
            "finish_reason": event.finish_reason,
            "stop_reason": event.stop_reason,
            "prompt_token_ids": list(self._prompts[index // self._num_choices]) if returns_prompt else None,
            "token_ids": event.token_ids if returns_ids else None,
        }


def _usage(num_prompt_tokens: int, num_completion_tokens: int) -> dict[str, Any]:
    return {
        "prompt_tokens": num_prompt_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
        "completion_tokens": num_completion_tokens,
    }
