"""Bodies of derender calls. What doesn't change during a stream is encoded once, so that a chunk costs its own size."""

from collections.abc import Mapping, Sequence
from typing import Any

from motor.coordinator.domain.generation import GenerateChoice, GenerateResponse
from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.render.models import TokenizedRequest
from motor.coordinator.wire.openai import encode_json

_PARSING_FIELDS = (
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "include_reasoning",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
    "documents",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "return_token_ids",
)
"""All that vLLM's parsers read of a request, besides past tool calls."""


_NUM_SEED_IDS = 7
"""As much of a prompt as vLLM's detokenizer looks at."""


def request_for_parsing(client: ClientRequest) -> dict[str, Any]:
    """Return the part of the client's request that Derender needs.

    The conversation stays out (it may hold images, and goes along with every chunk), except for past tool calls,
    which some parsers count to number the next one.
    """
    fields = client.fields
    kept = {name: fields[name] for name in _PARSING_FIELDS if fields.get(name) is not None}
    if client.api is Api.CHAT:
        kept["messages"] = [_past_tool_calls(m) for m in fields.get("messages") or () if _has_tool_calls(m)]
    else:
        kept["prompt"] = [0]  # validated to be there, never read
    return kept


def _has_tool_calls(message: object) -> bool:
    return isinstance(message, Mapping) and message.get("role") == "assistant" and bool(message.get("tool_calls"))


def _past_tool_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": message["tool_calls"]}


class ChunkCallTemplate:
    """Makes the bodies of one prompt's streamed derender calls."""

    def __init__(self, client: ClientRequest, request: TokenizedRequest, model: str) -> None:
        fixed: dict[str, Any] = {
            "stream": True,
            "model": model,
            "prompt_tokens": request.num_prompt_tokens,
            "prompt_token_ids": request.semantic_ids,
        }
        fixed["chat_request" if client.api is Api.CHAT else "completion_request"] = request_for_parsing(client)
        self._chunk_head = b'"generate_chunk":{"request_id":' + encode_json(client.public_id) + b',"choices":['
        self._head = encode_json(fixed)[:-1] + b"," + self._chunk_head

    def continuing_body(self, choice: GenerateChoice, continuation: str) -> bytes:
        """Return the body of a call to the process that keeps this choice's parser alive."""
        return b"".join(
            (b'{"continuation":', encode_json(continuation), b",", self._chunk_head, encode_json(choice), b"]}}")
        )

    def body(self, choice: GenerateChoice, state: bytes) -> bytes:
        """Return the body of the call for one chunk and the previous state."""
        return b"".join((self._head, encode_json(choice), b']},"stream_state":', state, b"}"))


def complete_call(
    client: ClientRequest, requests: Sequence[TokenizedRequest], responses: Sequence[GenerateResponse], model: str
) -> bytes:
    """Return the body of a complete derender call."""
    answers = [_carried(client, *pair) for pair in zip(requests, responses, strict=True)]
    body: dict[str, Any] = {"stream": False, "model": model}
    if client.api is Api.CHAT:
        body["generate_response"] = answers[0]
        body["prompt_tokens"] = requests[0].num_prompt_tokens
        body["prompt_token_ids"] = requests[0].semantic_ids
        body["chat_request"] = request_for_parsing(client)
    else:
        body["generate_responses"] = answers
        body["prompt_tokens"] = [request.num_prompt_tokens for request in requests]
        body["prompt_token_ids"] = [request.semantic_ids for request in requests]
        body["completion_request"] = request_for_parsing(client)
    return encode_json(body)


def logprobs_call(
    client: ClientRequest, request: TokenizedRequest, entries: Sequence[Mapping[str, Any]], model: str
) -> bytes:
    """Return the body of a complete chat derender call that decodes logprobs; its text is of no interest."""
    choice = {
        "index": 0,
        "token_ids": [entry["token_id"] for entry in entries],
        "finish_reason": "length",
        "logprobs": {"content": entries},
    }
    return encode_json(
        {
            "stream": False,
            "model": model,
            "generate_response": {"request_id": client.public_id, "model": model, "created": 0, "choices": [choice]},
            "prompt_tokens": request.num_prompt_tokens,
            "prompt_token_ids": request.semantic_ids[-_NUM_SEED_IDS:],
            "chat_request": {"messages": []},
        }
    )


def _carried(client: ClientRequest, request: TokenizedRequest, response: GenerateResponse) -> dict[str, Any]:
    return {
        "request_id": client.public_id,
        "model": response.model,
        "created": response.created,
        "choices": response.choices,
        "prompt_logprobs": response.prompt_logprobs,
        # The parsers of a complete answer look for the prompt here, not beside it.
        "prompt_token_ids": request.semantic_ids,
        "metrics": response.metrics,
    }
