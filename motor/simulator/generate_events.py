"""The bytes of generate answers: an event costs one join of prepared parts."""

import json
from collections.abc import Sequence
from typing import Any

from motor.simulator.answers import encode
from motor.simulator.chunk_plan import Chunk
from motor.simulator.engine_core import Generation

DONE_EVENT = b"data: [DONE]\n\n"
_CHOICE_TAIL = b',"routed_experts":null,"sampling_mask":null,"weight_versions":'


def event(value: object) -> bytes:
    """Return a JSON value as a server-sent event."""
    return b"data: " + encode(value) + b"\n\n"


def error_event(error: dict[str, Any]) -> bytes:
    """Return vLLM's in-stream error, which unlike all else comes with spaces."""
    return f"data: {json.dumps(error)}\n\n".encode()


def usage(num_prompt: int, num_completion: int, prompt_details: dict[str, Any] | None) -> dict[str, Any]:
    """Return a usage object with every field."""
    return {
        "prompt_tokens": num_prompt,
        "total_tokens": num_prompt + num_completion,
        "completion_tokens": num_completion,
        "prompt_tokens_details": prompt_details,
        "completion_tokens_details": None,
    }


def cached_details(num_cached: int) -> dict[str, Any]:
    """Return `prompt_tokens_details` with every field."""
    return {"cached_tokens": num_cached, "created_cache_tokens": None, "multimodal_tokens": None}


def token_logprobs(ids: Sequence[int], num_top: int) -> dict[str, Any]:
    """Return made-up logprobs of the right shape: the generated id first, then others of falling probability."""
    return {"content": [_position(token_id, num_top) for token_id in ids]}


def _position(token_id: int, num_top: int) -> dict[str, Any]:
    ranked = [
        {"token_id": token_id if rank == 1 else (token_id + rank) % 256, "logprob": -0.0078125 * rank**3, "rank": rank}
        for rank in range(1, max(1, num_top) + 1)
    ]
    return {**ranked[0], "top_logprobs": ranked}


def weight_versions(num_generated: int) -> list[dict[str, Any]]:
    """Return which weights generated a choice."""
    return [{"version": "default", "start": 0, "end": num_generated}]


class EventEncoder:
    """Encodes one stream's events; `_is_first` changes with the first.

    Args:
        generation: The request; its cached tokens are read for the usage event.
        has_details: Whether the usage event tells cached tokens.
    """

    def __init__(self, generation: Generation, *, has_details: bool) -> None:
        self._generation = generation
        self._has_details = has_details
        request = generation.request
        self._num_prompt = len(request.token_ids)
        self._num_logprobs = request.sampling_params.logprobs
        self._has_continuous_usage = request.has_continuous_usage
        self._head = b'data: {"request_id":' + encode(generation.external_id) + b',"usage":'
        self._is_first = True

    def chunk(self, chunk: Chunk) -> bytes:
        """Return a choice's event."""
        is_last = chunk.finish_reason is not None
        parts = [self._head, self._usage(chunk), self._prompt(), b',"output_mode":"tokens","choices":[{"index":']
        parts.append(b"%d" % chunk.index)
        if is_last:
            parts.append(
                b',"finish_reason":%b,"stop_reason":%b,"token_ids":'
                % (encode(chunk.finish_reason), encode(chunk.stop_reason))
            )
        else:
            parts.append(b',"finish_reason":null,"stop_reason":null,"token_ids":')
        parts += [encode(chunk.ids), _CHOICE_TAIL, encode(weight_versions(chunk.num_generated)) if is_last else b"null"]
        logprobs = b"null" if self._num_logprobs is None else encode(token_logprobs(chunk.ids, self._num_logprobs))
        parts += [b',"logprobs":', logprobs, b"}]}\n\n"]
        return b"".join(parts)

    def usage_event(self, num_completion: int) -> bytes:
        """Return the event that ends a stream with `include_usage`; nulls are left out, as vLLM does."""
        counts = {
            "prompt_tokens": self._num_prompt,
            "total_tokens": self._num_prompt + num_completion,
            "completion_tokens": num_completion,
        }
        details = {"prompt_tokens_details": {"cached_tokens": self._generation.num_cached}} if self._has_details else {}
        return event(
            {
                "request_id": self._generation.external_id,
                "usage": {**counts, **details},
                "output_mode": "tokens",
                "choices": [],
            }
        )

    def _usage(self, chunk: Chunk) -> bytes:
        if not self._has_continuous_usage:
            return b"null"
        return encode(usage(self._num_prompt, chunk.num_generated, None))

    def _prompt(self) -> bytes:
        request = self._generation.request
        if not self._is_first or not request.return_token_ids:
            return b""
        self._is_first = False
        return b',"prompt_token_ids":' + encode(request.token_ids)


def complete_answer(
    generation: Generation, chunks: Sequence[Chunk], *, model: str, created: int, has_details: bool
) -> dict[str, Any]:
    """Return the non-streamed answer with every field."""
    request = generation.request
    choices = [
        _complete_choice(index, chunks, request.sampling_params.logprobs) for index in range(request.sampling_params.n)
    ]
    num_completion = sum(len(choice["token_ids"]) for choice in choices)
    return {
        "request_id": generation.external_id,
        "model": model,
        "created": created,
        "usage": usage(
            len(request.token_ids), num_completion, cached_details(generation.num_cached) if has_details else None
        ),
        "prompt_logprobs": None,
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": request.token_ids if request.return_token_ids else None,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": generation.kv_result,
        "ec_transfer_params": None,
        "output_mode": "tokens",
        "choices": choices,
    }


def _complete_choice(index: int, chunks: Sequence[Chunk], num_logprobs: int | None) -> dict[str, Any]:
    own = [chunk for chunk in chunks if chunk.index == index]
    ids = [token_id for chunk in own for token_id in chunk.ids]
    last = own[-1] if own else None
    return {
        "index": index,
        "finish_reason": "abort" if last is None else last.finish_reason or "stop",
        "stop_reason": None if last is None else last.stop_reason,
        "token_ids": ids,
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": weight_versions(len(ids)),
        "logprobs": None if num_logprobs is None else token_logprobs(ids, num_logprobs),
    }
