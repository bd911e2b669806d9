"""Generate events to OpenAI chunks, one call an event, with the state in the client's hands."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from motor.simulator.answers import RequestRejected
from motor.simulator.derender_complete import check_chat_request, has_tools, skips_special_tokens, usage_of
from motor.simulator.derender_request import DerenderStreamRequest, GeneratedChoice, StreamState
from motor.simulator.detokenizer import decode_next, seeded_state
from motor.simulator.logprob_texts import chat_logprobs, completion_logprobs, context_tail
from motor.simulator.model_folder import ModelFolder
from motor.simulator.parsers import ParsedText, parse_output
from motor.simulator.render_settings import RenderSettings
from motor.simulator.rendering import is_thinking


def derender_chat_chunk(
    model: ModelFolder, settings: RenderSettings, request: DerenderStreamRequest, created: int
) -> dict[str, Any]:
    """Return `{chunk, stream_state}` of a chat event.

    Raises:
        RequestRejected: Several choices, or what parsers need is missing.
    """
    _check_parser_inputs(settings, request)
    choices, state = [], request.stream_state
    for choice in _at_most_one(request):
        if settings.has_parsers:
            answered, state = _parsed_choice(model, request, choice, state or StreamState())
        else:
            answered, state = _plain_choice(model, request, choice, state or _seeded(model, request))
        choices.append(answered)
    chunk = {
        **_envelope(settings, request, "chat.completion.chunk", created),
        "choices": choices,
        "usage": _usage(request),
        "system_fingerprint": None,
        "prompt_token_ids": None,
        "prompt_text": None,
        "metrics": None,
    }
    return {"chunk": chunk, "stream_state": state or StreamState()}


def derender_completion_chunk(
    model: ModelFolder, settings: RenderSettings, request: DerenderStreamRequest, created: int
) -> dict[str, Any]:
    """Return `{chunk, stream_state}` of a completion event.

    Raises:
        RequestRejected: Several choices.
    """
    choices, state = [], request.stream_state
    for choice in _at_most_one(request):
        state = state or _seeded(model, request)
        offset, context, ids = state.logprob_text_offset, state.logprob_context_token_ids, choice.token_ids or []
        text, detokenizer = decode_next(
            model, state.detokenizer, ids, skip_special_tokens=skips_special_tokens(request.completion_request)
        )
        logprobs = None
        if choice.logprobs is not None:
            logprobs = completion_logprobs(model, choice.logprobs, context, offset)
        tail = context_tail(context, ids)
        state = replace(state, logprob_context_token_ids=tail, logprob_text_offset=offset + len(text))
        state = state.with_detokenizer(detokenizer)
        choices.append(
            {
                "index": choice.index,
                "text": text,
                "logprobs": logprobs,
                "finish_reason": choice.finish_reason,
                "stop_reason": choice.stop_reason,
                "prompt_token_ids": None,
                "token_ids": None,
            }
        )
    chunk = {
        **_envelope(settings, request, "text_completion", created),
        "choices": choices,
        "usage": _usage(request),
        "system_fingerprint": None,
        "metrics": None,
    }
    return {"chunk": chunk, "stream_state": state or StreamState()}


def _check_parser_inputs(settings: RenderSettings, request: DerenderStreamRequest) -> None:
    check_chat_request(settings, request.chat_request)
    if settings.has_parsers and request.prompt_token_ids is None:
        raise RequestRejected(
            "prompt_token_ids is required when a tool or reasoning parser is configured. Without it parse_delta "
            "cannot tell whether the prompt left reasoning open (e.g. a chat template that pre-opens <think>) and "
            "would misclassify reasoning content as plain content."
        )
    state = request.stream_state
    if state is not None and sum(state.output_chunk_lens) != len(state.output_token_ids):
        raise RequestRejected("output_chunk_lens must sum to the length of output_token_ids")


def _at_most_one(request: DerenderStreamRequest) -> Sequence[GeneratedChoice]:
    choices = request.generate_chunk.choices
    if len(choices) > 1:
        raise RequestRejected(f"derender_chat_stream expects at most one choice per chunk (got {len(choices)}).")
    return choices


def _seeded(model: ModelFolder, request: DerenderStreamRequest) -> StreamState:
    ids = request.prompt_token_ids or request.generate_chunk.prompt_token_ids
    return StreamState().with_detokenizer(seeded_state(model, ids))


def _plain_choice(
    model: ModelFolder, request: DerenderStreamRequest, choice: GeneratedChoice, state: StreamState
) -> tuple[dict[str, Any], StreamState]:
    chat_request, ids = request.chat_request or {}, choice.token_ids or []
    skips = skips_special_tokens(chat_request)
    text, detokenizer = decode_next(model, state.detokenizer, ids, skip_special_tokens=skips)
    context = state.logprob_context_token_ids
    logprobs = None if choice.logprobs is None else chat_logprobs(model, choice.logprobs, context)
    delta = {"role": None if state.role_sent else "assistant", "content": text or None, "reasoning": None}
    answered = _chat_choice(choice, delta, choice.finish_reason, logprobs, chat_request)
    state = replace(state, role_sent=True, logprob_context_token_ids=context_tail(context, ids))
    return answered, state.with_detokenizer(detokenizer)


def _parsed_choice(
    model: ModelFolder, request: DerenderStreamRequest, choice: GeneratedChoice, state: StreamState
) -> tuple[dict[str, Any], StreamState]:
    """Parse the whole output with and without the new ids; the difference is the delta."""
    chat_request, prompt = request.chat_request or {}, request.prompt_token_ids or []
    new_ids = choice.token_ids or []
    before_text, detokenizer = decode_next(
        model, seeded_state(model, prompt), state.output_token_ids, skip_special_tokens=False
    )
    text = before_text + decode_next(model, detokenizer, new_ids, skip_special_tokens=False)[0]
    is_open, finds_tools = is_thinking(model, prompt), has_tools(chat_request)
    before = parse_output(before_text, is_thinking=is_open, has_tools=finds_tools, is_finished=False)
    is_finished = choice.finish_reason is not None
    after = parse_output(text, is_thinking=is_open, has_tools=finds_tools, is_finished=is_finished)
    call_ids = [*state.last_tool_call_ids]
    call_ids += [f"chatcmpl-tool-{uuid.uuid4().hex[:16]}" for _ in after.calls[len(call_ids) :]]
    delta = _delta(before, after, call_ids, chat_request)
    delta["role"] = None if state.role_sent else "assistant"
    streamed = state.tools_streamed or bool(after.calls)
    finish_reason = choice.finish_reason
    if finish_reason is not None and streamed and not isinstance(chat_request.get("tool_choice"), dict):
        finish_reason = "tool_calls"
    state = replace(
        state,
        role_sent=True,
        tools_streamed=streamed,
        last_tool_call_ids=call_ids,
        output_token_ids=[*state.output_token_ids, *new_ids],
        output_chunk_lens=[*state.output_chunk_lens, *([len(new_ids)] if new_ids else [])],
    )
    return _chat_choice(choice, delta, finish_reason, None, chat_request), state


def _delta(
    before: ParsedText, after: ParsedText, call_ids: Sequence[str], chat_request: Mapping[str, Any]
) -> dict[str, Any]:
    reasoning = after.reasoning[len(before.reasoning) :]
    if chat_request.get("include_reasoning") is False:
        reasoning = ""
    delta: dict[str, Any] = {"role": None, "content": after.content[len(before.content) :] or None}
    calls: list[dict[str, Any]] = []
    for index, call in enumerate(after.calls):
        is_known = index < len(before.calls)
        if not is_known:
            calls.append(_call_entry(index, call_ids[index], call.name, None))
        done = before.calls[index].arguments if is_known else ""
        if arguments := call.arguments[len(done) :]:
            calls.append(_call_entry(index, None, None, arguments))
    if chat_request.get("parallel_tool_calls") is False:
        calls = [entry for entry in calls if entry["index"] == 0]
    if calls:
        delta["tool_calls"] = calls
    delta["reasoning"] = reasoning or None
    return delta


def _call_entry(index: int, call_id: str | None, name: str | None, arguments: str | None) -> dict[str, Any]:
    return {
        "id": call_id,
        "type": None if call_id is None else "function",
        "index": index,
        "function": {"name": name, "arguments": arguments},
    }


def _chat_choice(
    choice: GeneratedChoice,
    delta: dict[str, Any],
    finish_reason: str | None,
    logprobs: dict[str, Any] | None,
    chat_request: Mapping[str, Any],
) -> dict[str, Any]:
    returns_ids = chat_request.get("return_token_ids") and chat_request.get("include_reasoning") is not False
    return {
        "index": choice.index,
        "delta": delta,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": choice.token_ids if returns_ids else None,
    }


def _envelope(settings: RenderSettings, request: DerenderStreamRequest, kind: str, created: int) -> dict[str, Any]:
    return {
        "id": request.generate_chunk.request_id,
        "object": kind,
        "created": created,
        "model": request.model or settings.served_model_name,
    }


def _usage(request: DerenderStreamRequest) -> dict[str, Any] | None:
    told = request.generate_chunk.usage
    if told is None:
        return None
    num_prompt = told.get("prompt_tokens", 0) if request.prompt_tokens is None else request.prompt_tokens
    return usage_of(num_prompt, told.get("completion_tokens") or 0)
