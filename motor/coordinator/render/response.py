"""Complete answers: Derender once, then what vLLM leaves to its caller (RFC: 非流式 Derender)."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from motor.coordinator.domain.errors import DerenderUnavailable
from motor.coordinator.domain.generation import GenerateChoice, GenerateResponse
from motor.coordinator.domain.request import Api
from motor.coordinator.render.answer_facts import AnswerFacts
from motor.coordinator.render.choice_merge import answer_role
from motor.coordinator.render.derender_requests import complete_call
from motor.coordinator.render.echo import echoed_texts
from motor.coordinator.render.logprobs import LogprobsOptions, LogprobsStream
from motor.coordinator.render.models import TokenizedBatch
from motor.coordinator.render.prompt_stream import ends_with_stop_id, for_derender
from motor.coordinator.render.stop_strings import StopRules
from motor.coordinator.render.vllm_render_client import VllmRenderClient
from motor.coordinator.wire.openai import encode_json

_BARE_TOOL_ID = re.compile(r"^[0-9a-f]{16}$")
_TOOL_ID_PREFIX = "chatcmpl-tool-"


async def complete_response(
    batch: TokenizedBatch,
    responses: Sequence[GenerateResponse],
    derenderer: VllmRenderClient,
    *,
    model: str,
    created: int,
    facts: AnswerFacts,
) -> bytes:
    """Return the OpenAI response body for complete generate responses, one per prompt.

    Raises:
        DerenderFault: Derender failed; inference isn't repeated.
    """
    client = batch.client
    stop = _stop_rules(batch)
    asked = [_for_derender(response, stop) for response in responses]
    answer = await derenderer.derender_complete(
        client.api, complete_call(client, batch.prompts, asked, model), client.forward_headers
    )
    engine_choices = [choice for response in responses for choice in response.choices]
    shown = answer.get("choices")
    if not isinstance(shown, list) or len(shown) != len(engine_choices):
        raise DerenderUnavailable("Derender's answer has another number of choices")
    is_hidden = facts.has_parser and client.fields.get("include_reasoning") is False
    for index, (choice, engine_choice) in enumerate(zip(shown, engine_choices, strict=True)):
        choice["index"] = index
        _complete_choice(choice, engine_choice, batch, stop)
        if facts.shows_cut_characters and client.api is Api.COMPLETIONS:
            choice["text"] = choice["text"].rstrip("\N{REPLACEMENT CHARACTER}")
        if client.flag("return_token_ids") and not is_hidden:
            choice["token_ids"] = engine_choice.token_ids
    await _add_logprobs(shown, batch, responses, None if is_hidden else derenderer, model)
    _add_echo(shown, batch)
    answer.update(
        id=client.public_id,
        created=created,
        model=model,
        system_fingerprint=facts.system_fingerprint,
        usage=_usage(batch, responses, answer.get("usage")),
    )
    _add_prompt_details(answer, batch, responses)
    return encode_json(answer)


async def _add_logprobs(
    shown: Sequence[dict[str, Any]],
    batch: TokenizedBatch,
    responses: Sequence[GenerateResponse],
    derenderer: VllmRenderClient | None,
    model: str,
) -> None:
    """Put in every position's logprobs, the terminating one included; none without a derenderer."""
    options = LogprobsOptions.of(batch.client)
    choices = iter(shown)
    for prompt, response in zip(batch.prompts, responses, strict=True):
        for engine_choice in response.choices:
            logprobs = None
            if options is not None and derenderer is not None:
                stream = LogprobsStream(batch.client, prompt, options, derenderer, model)
                logprobs = await stream.resolve(engine_choice)
            next(choices)["logprobs"] = logprobs


def _add_echo(shown: Sequence[dict[str, Any]], batch: TokenizedBatch) -> None:
    for choice, text in zip(shown, echoed_texts(batch), strict=True):
        if not text:
            continue
        if batch.client.api is Api.CHAT:
            choice["message"]["content"] = text + (choice["message"]["content"] or "")
        else:
            choice["text"] = text + choice["text"]


def _stop_rules(batch: TokenizedBatch) -> StopRules:
    params = batch.prompts[0].sampling_params
    return StopRules(tuple(params.get("stop") or ()), bool(params.get("include_stop_str_in_output")))


def _for_derender(response: GenerateResponse, stop: StopRules) -> GenerateResponse:
    """Return a copy whose choices end before the terminating id, which is no text."""
    choices = [
        for_derender(choice, (choice.token_ids or [])[:-1])
        # Derender refuses a choice without ids: a lone terminating id goes along and its text is dropped later.
        if ends_with_stop_id(choice) and not stop.includes_stop and len(choice.token_ids or ()) > 1
        else for_derender(choice, choice.token_ids or [])
        for choice in response.choices
    ]
    return GenerateResponse(
        request_id=response.request_id,
        model=response.model,
        created=response.created,
        choices=choices,
        prompt_logprobs=response.prompt_logprobs,
        metrics=response.metrics,
    )


def _complete_choice(shown: dict[str, Any], engine: GenerateChoice, batch: TokenizedBatch, stop: StopRules) -> None:
    fields = batch.client.fields
    is_only_stop_id = ends_with_stop_id(engine) and not stop.includes_stop and len(engine.token_ids or ()) == 1
    shown["finish_reason"] = engine.finish_reason
    shown["stop_reason"] = engine.stop_reason
    if batch.client.api is Api.CHAT:
        message = shown["message"]
        message["role"] = answer_role(batch.client)
        if is_only_stop_id:
            message["content"] = ""
        _complete_tool_calls(message, fields)
        shown["finish_reason"] = _chat_finish_reason(message, engine, fields)
        _cut_at_stop(message, ("content", "reasoning"), engine, stop)
    else:
        if is_only_stop_id:
            shown["text"] = ""
        _cut_at_stop(shown, ("text",), engine, stop)


def _complete_tool_calls(message: dict[str, Any], fields: Mapping[str, Any]) -> None:
    calls = message.get("tool_calls")
    if not calls:
        return
    if fields.get("parallel_tool_calls") is False:
        calls = message["tool_calls"] = calls[:1]
    for call in calls:
        if _BARE_TOOL_ID.match(str(call.get("id"))):
            call["id"] = _TOOL_ID_PREFIX + call["id"]


def _chat_finish_reason(message: Mapping[str, Any], engine: GenerateChoice, fields: Mapping[str, Any]) -> str | None:
    """`tool_calls` as native vLLM says it: for `auto` whenever calls were found, for `required` instead of `stop`."""
    tool_choice = fields.get("tool_choice")
    if isinstance(tool_choice, dict) or tool_choice == "none":
        return engine.finish_reason
    if tool_choice == "required":
        return "tool_calls" if engine.finish_reason == "stop" else engine.finish_reason
    return "tool_calls" if message.get("tool_calls") else engine.finish_reason


def _cut_at_stop(holder: dict[str, Any], names: Iterable[str], engine: GenerateChoice, stop: StopRules) -> None:
    if not isinstance(engine.stop_reason, str):
        return
    for name in names:
        text = holder.get(name)
        if text:
            # The engine stops as soon as the string is complete, so the one that stopped it is the last one.
            cut = text.rfind(engine.stop_reason)
            if cut >= 0:
                holder[name] = text[: cut + len(engine.stop_reason)] if stop.includes_stop else text[:cut]
            return


def _usage(batch: TokenizedBatch, responses: Sequence[GenerateResponse], derendered: Any) -> dict[str, Any]:
    """Count as the engine counted: Derender saw no terminating ids and no cache details."""
    num_completion = sum(len(choice.token_ids or ()) for response in responses for choice in response.choices)
    usage = dict(derendered) if isinstance(derendered, dict) else {}
    usage.update(
        prompt_tokens=batch.num_prompt_tokens,
        completion_tokens=num_completion,
        total_tokens=batch.num_prompt_tokens + num_completion,
    )
    engine_usage = responses[-1].usage  # native vLLM reports the last prompt's details
    if engine_usage is not None:
        usage["prompt_tokens_details"] = engine_usage.prompt_tokens_details
    return usage


def _add_prompt_details(answer: dict[str, Any], batch: TokenizedBatch, responses: Sequence[GenerateResponse]) -> None:
    returns_ids = batch.client.flag("return_token_ids")
    answer["kv_transfer_params"] = None
    if batch.client.api is Api.CHAT:
        if returns_ids:
            answer["prompt_token_ids"] = batch.prompts[0].semantic_ids
        return
    pairs = [
        (prompt, response) for prompt, response in zip(batch.prompts, responses, strict=True) for _ in response.choices
    ]
    for choice, (prompt, response) in zip(answer["choices"], pairs, strict=True):
        choice["prompt_logprobs"] = response.prompt_logprobs
        if returns_ids:
            choice["prompt_token_ids"] = prompt.semantic_ids
