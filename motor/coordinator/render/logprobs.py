"""Logprobs in OpenAI form: which a streamed derender with a parser drops, and which lack the terminating token.

The ids of a chunk and a few before them go through a complete derender call of their own, whose text is thrown away.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from motor.coordinator.domain.errors import DerenderUnavailable
from motor.coordinator.domain.generation import GenerateChoice
from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.render.derender_requests import logprobs_call
from motor.coordinator.render.models import TokenizedRequest
from motor.coordinator.render.vllm_render_client import VllmRenderClient

NUM_CONTEXT_IDS = 4
"""How many earlier ids a character may be spread over; vLLM looks as far back."""


@dataclass(frozen=True, slots=True)
class LogprobsOptions:
    """What the client wants of logprobs.

    Attributes:
        num_top: `top_logprobs`, or for completions `logprobs`.
        as_token_ids: `return_tokens_as_token_ids`: names such as `token_id:5` in place of text.
    """

    num_top: int
    as_token_ids: bool

    @classmethod
    def of(cls, client: ClientRequest) -> "LogprobsOptions | None":
        """Read the options of a request; `None` if it wants no logprobs."""
        fields = client.fields
        as_token_ids = client.flag("return_tokens_as_token_ids")
        if client.api is Api.CHAT:
            return cls(int(fields.get("top_logprobs") or 0), as_token_ids) if client.flag("logprobs") else None
        return cls(int(fields["logprobs"]), as_token_ids) if fields.get("logprobs") is not None else None


def num_engine_logprobs(options: LogprobsOptions, api: Api, num_rendered: int, max_logprobs: int = 20) -> int:
    """Return how many logprobs to ask the engine for.

    Native completions show the sampled token beside the N best; generate shows at most N entries in all, so one more
    is asked for, as far as engines allow.
    """
    if api is Api.COMPLETIONS and 0 < options.num_top < max_logprobs:
        return max(num_rendered, options.num_top + 1)
    return num_rendered


class LogprobsStream:
    """The logprobs of one choice, chunk by chunk; mutable: `_context`, `_text_offset`, `_attempt_start`.

    Args:
        client: The request.
        prompt: The choice's prompt.
        options: What is wanted.
        derenderer: The sidecar.
        model: The name that the sidecar knows the model by.
    """

    def __init__(
        self,
        client: ClientRequest,
        prompt: TokenizedRequest,
        options: LogprobsOptions,
        derenderer: VllmRenderClient,
        model: str,
    ) -> None:
        self._client = client
        self._prompt = prompt
        self._options = options
        self._derenderer = derenderer
        self._model = model
        self._context: list[dict[str, Any]] = []
        self._text_offset = 0
        self._attempt_start = (self._context, self._text_offset)

    def begin_attempt(self) -> None:
        """Remember where this attempt starts."""
        self._attempt_start = (self._context, self._text_offset)

    def take_back_attempt(self) -> None:
        """Forget an attempt of which the client has seen nothing."""
        self._context, self._text_offset = self._attempt_start

    async def resolve(self, choice: GenerateChoice) -> dict[str, Any] | None:
        """Return a chunk's logprobs in the shape of the request's API.

        Raises:
            DerenderFault: The sidecar could not decode them.
        """
        entries = _entries(choice)
        if entries is None:
            return None
        resolved = await self._decoded(entries)
        if self._options.as_token_ids:
            resolved = [_named_by_id(*pair) for pair in zip(entries, resolved, strict=True)]
        self._context = (self._context + entries)[-NUM_CONTEXT_IDS:]
        if self._client.api is Api.CHAT:
            return {"content": [_cut(entry, self._options.num_top) for entry in resolved]}
        return self._as_completion(entries, resolved)

    async def _decoded(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Have the sidecar decode the ids; chat's shape is asked for, it has all that completions need."""
        carried = self._context + entries
        if not carried:
            return []
        body = logprobs_call(self._client, self._prompt, carried, self._model)
        answer = await self._derenderer.derender_complete(Api.CHAT, body, self._client.forward_headers)
        try:
            resolved = answer["choices"][0]["logprobs"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise DerenderUnavailable("Derender's answer has no logprobs") from error
        return list(resolved[len(self._context) :])

    def _as_completion(self, entries: Sequence[dict[str, Any]], resolved: Sequence[dict[str, Any]]) -> dict[str, Any]:
        tokens = [entry["token"] for entry in resolved]
        offsets = []
        for token in tokens:
            offsets.append(self._text_offset)
            self._text_offset += len(token)
        num_top = self._options.num_top
        return {
            "text_offset": offsets,
            "token_logprobs": [entry["logprob"] for entry in resolved],
            "tokens": tokens,
            "top_logprobs": [
                {
                    shown["token"]: shown["logprob"]
                    for engine, shown in zip(wire["top_logprobs"], entry["top_logprobs"], strict=True)
                    if num_top < 0 or engine["token_id"] == wire["token_id"] or (engine.get("rank") or 0) <= num_top
                }
                for wire, entry in zip(entries, resolved, strict=True)
            ],
        }


def _entries(choice: GenerateChoice) -> list[dict[str, Any]] | None:
    logprobs = choice.logprobs
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return content if isinstance(content, list) else None


def _named_by_id(wire: dict[str, Any], decoded: dict[str, Any]) -> dict[str, Any]:
    """Name tokens by their ids; native vLLM leaves the sampled token's bytes as they are, and no others."""
    tops = zip(wire["top_logprobs"], decoded["top_logprobs"], strict=True)
    return {
        **decoded,
        "token": _placeholder(wire),
        "top_logprobs": [
            {**shown, "token": _placeholder(engine), "bytes": list(_placeholder(engine).encode())}
            for engine, shown in tops
        ],
    }


def _placeholder(wire: dict[str, Any]) -> str:
    return f"token_id:{wire['token_id']}"


def _cut(entry: dict[str, Any], num_top: int) -> dict[str, Any]:
    return entry if num_top < 0 else {**entry, "top_logprobs": entry["top_logprobs"][:num_top]}
