"""Token In: the client's request to a `TokenizedBatch` (RFC: Render 阶段).

Render runs before flow control and scheduling, and its ids are final: nobody computes them again.
"""

import time
from dataclasses import replace
from typing import Any

import msgspec

from motor.coordinator.domain.errors import RenderFault, RenderMalformed, RequestInvalid
from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.domain.tokens import SemanticTokenIds
from motor.coordinator.render.context_budget import within_context
from motor.coordinator.render.local_tokenizer import LocalTokenizer
from motor.coordinator.render.logprobs import LogprobsOptions, num_engine_logprobs
from motor.coordinator.render.models import FallbackPrompts, TokenizedBatch, TokenizedRequest, TokenizerSource
from motor.coordinator.render.vllm_render_client import RenderedRequest, VllmRenderClient
from motor.coordinator.telemetry.log import get_logger

DEFAULT_MAX_TOKENS = 16
"""vLLM's `SamplingParams` default. Render leaves out members that equal their default, and generate reads an absent
`max_tokens` as "the rest of the context": whoever carries the request between them must write it back."""

_REPLACED_MEMBERS = frozenset({"token_ids", "sampling_params", "request_id", "stream", "stream_options"})
_ids_decoder = msgspec.json.Decoder(tuple[int, ...])
_params_decoder = msgspec.json.Decoder(dict[str, Any])
_log = get_logger(__name__)


class TokenizationService:
    """Makes token ids of requests through Render, or else by itself.

    Args:
        render_client: The sidecar.
        local_tokenizer: Where ids come from when Render gives none.
        vocabulary_size: Ids must be under it; `None` if unknown, then engines judge ids themselves.
        max_model_len: The context that prompt and answer are kept within; `None` leaves that to the peers.
    """

    def __init__(
        self,
        render_client: VllmRenderClient,
        local_tokenizer: LocalTokenizer,
        vocabulary_size: int | None,
        max_model_len: int | None = None,
    ) -> None:
        self._render_client = render_client
        self._local_tokenizer = local_tokenizer
        self._vocabulary_size = vocabulary_size
        self._max_model_len = max_model_len

    async def tokenize(self, client: ClientRequest) -> TokenizedBatch:
        """Return every prompt of the request as final token ids with its sampling parameters.

        Raises:
            RequestInvalid: The request is wrong, with native vLLM's own error.
            RenderFault: Render is no help; a fallback may be.
        """
        started = time.perf_counter()
        rendered = await self._render_client.render(client)
        if len(rendered) != _num_prompts(client):
            raise RenderMalformed("Render returned another number of prompts")
        batch = TokenizedBatch(client, tuple(_tokenized(client, index, one) for index, one in enumerate(rendered)))
        self._check_vocabulary(batch)
        batch = self._budgeted(batch)
        _log.info(
            "render.done",
            num_prompts=len(batch.prompts),
            num_prompt_tokens=batch.num_prompt_tokens,
            latency_ms=round((time.perf_counter() - started) * 1000, 2),
            tokenizer_source=TokenizerSource.RENDER,
        )
        return batch

    async def tokenize_locally(self, client: ClientRequest, fault: RenderFault) -> FallbackPrompts:
        """Return what can be known of a request that Render was no help with.

        Never call it for a request that Render has judged: a local tokenizer would take what must be refused.
        """
        started = time.perf_counter()
        prompts = await self._local_tokenizer.prompts_of(client)
        _log.warning(
            "render.fallback",
            reason=fault.kind,
            fallback="local_tokenizer",
            num_prompt_tokens=prompts.num_prompt_tokens,
            latency_ms=round((time.perf_counter() - started) * 1000, 2),
            tokenizer_source=prompts.tokenizer_source,
        )
        return prompts

    def _budgeted(self, batch: TokenizedBatch) -> TokenizedBatch:
        if self._max_model_len is None:
            return batch
        context = self._max_model_len
        return replace(batch, prompts=tuple(within_context(batch.client, one, context) for one in batch.prompts))

    def _check_vocabulary(self, batch: TokenizedBatch) -> None:
        """Refuse ids that no embedding has; one of them kills an engine that runs without a tokenizer.

        Raises:
            RequestInvalid: With native vLLM's message.
        """
        if self._vocabulary_size is None:
            return
        for prompt in batch.prompts:
            largest = max(prompt.semantic_ids)
            if largest >= self._vocabulary_size:
                error = RequestInvalid(f"Token id {largest} is out of vocabulary")
                error.is_event = batch.client.is_stream
                raise error


def _num_prompts(client: ClientRequest) -> int:
    """Return how many prompts a request has that Render took; a list of token ids is one prompt."""
    prompt, embeds = client.fields.get("prompt"), client.fields.get("prompt_embeds")
    num_embeds = len(embeds) if isinstance(embeds, list) else int(embeds is not None)
    if client.api is Api.COMPLETIONS and isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return num_embeds + len(prompt)
    return num_embeds + int(prompt is not None or client.api is Api.CHAT)


def _tokenized(client: ClientRequest, prompt_index: int, rendered: RenderedRequest) -> TokenizedRequest:
    """Split one GenerateRequest into what we read and what we only carry.

    Raises:
        RenderMalformed: No ids, or members of other types.
    """
    try:
        ids = _ids_decoder.decode(rendered["token_ids"])
        params = _params_decoder.decode(rendered["sampling_params"])
    except (KeyError, msgspec.DecodeError) as error:
        raise RenderMalformed("Render's answer has no usable token_ids or sampling_params") from error
    if not ids:
        raise RenderMalformed("Render returned an empty prompt")
    if params.get("max_tokens") is None:
        params["max_tokens"] = DEFAULT_MAX_TOKENS
    options = LogprobsOptions.of(client)
    if options is not None and isinstance(params.get("logprobs"), int):
        params["logprobs"] = num_engine_logprobs(options, client.api, params["logprobs"])
    return TokenizedRequest(
        prompt_index=prompt_index,
        semantic_ids=SemanticTokenIds(ids),
        sampling_params=params,
        metadata={name: value for name, value in rendered.items() if name not in _REPLACED_MEMBERS},
    )
