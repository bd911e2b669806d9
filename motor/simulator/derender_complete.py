"""Complete generate answers to OpenAI answers, as vLLM's derender endpoints do it."""

import uuid
from collections.abc import Mapping
from typing import Any

from motor.simulator.answers import RequestRejected
from motor.simulator.derender_request import DerenderChatRequest, DerenderCompletionRequest, Generated, GeneratedChoice
from motor.simulator.detokenizer import decode_next, seeded_state
from motor.simulator.logprob_texts import chat_logprobs, completion_logprobs
from motor.simulator.model_folder import ModelFolder
from motor.simulator.parsers import END_THINK, parse_output
from motor.simulator.render_settings import RenderSettings
from motor.simulator.rendering import is_thinking


def derender_chat(
    model: ModelFolder, settings: RenderSettings, request: DerenderChatRequest, created: int
) -> dict[str, Any]:
    """Return the chat answer with every field.

    Raises:
        RequestRejected: A choice without ids, or no chat request where parsers need it.
    """
    check_chat_request(settings, request.chat_request)
    generated = request.generate_response
    num_prompt = request.prompt_tokens or 0
    return {
        "id": generated.request_id,
        "object": "chat.completion",
        "created": created,
        "model": request.model or settings.served_model_name,
        "choices": [_chat_choice(model, settings, request, choice) for choice in generated.choices],
        "service_tier": None,
        "system_fingerprint": None,
        "usage": usage_of(num_prompt, _num_generated(generated)),
        "prompt_logprobs": generated.prompt_logprobs,
        "prompt_token_ids": None,
        "prompt_text": None,
        "kv_transfer_params": generated.kv_transfer_params,
        "ec_transfer_params": None,
        "metrics": generated.metrics,
    }


def derender_completions(
    model: ModelFolder, settings: RenderSettings, request: DerenderCompletionRequest, created: int
) -> dict[str, Any]:
    """Return the completion answer of all prompts with every field.

    Raises:
        RequestRejected: No answers, a choice without ids, or lists of different lengths.
    """
    answers = request.generate_responses
    if not answers:
        raise RequestRejected("generate_responses must not be empty")
    num_prompts = request.prompt_tokens or [0] * len(answers)
    seeds = request.prompt_token_ids or [None] * len(answers)
    if not len(answers) == len(num_prompts) == len(seeds):
        raise RequestRejected("prompt_tokens and prompt_token_ids must be as long as generate_responses")
    skips = skips_special_tokens(request.completion_request)
    choices: list[dict[str, Any]] = []
    for generated, seed in zip(answers, seeds, strict=True):
        for choice in generated.choices:
            text = _text(model, choice, seed or generated.prompt_token_ids, skip_special_tokens=skips)
            choices.append(_completion_choice(model, len(choices), choice, text))
    params = [generated.kv_transfer_params for generated in answers]
    return {
        "id": answers[0].request_id,
        "object": "text_completion",
        "created": created,
        "model": request.model or settings.served_model_name,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": None,
        "usage": usage_of(sum(num_prompts), sum(map(_num_generated, answers))),
        "kv_transfer_params": params[0] if all(param == params[0] for param in params) else None,
        "ec_transfer_params": None,
        "metrics": answers[0].metrics if len(answers) == 1 else None,
    }


def usage_of(num_prompt: int, num_completion: int) -> dict[str, Any]:
    """Return a usage object without details."""
    return {
        "prompt_tokens": num_prompt,
        "total_tokens": num_prompt + num_completion,
        "completion_tokens": num_completion,
        "prompt_tokens_details": None,
        "completion_tokens_details": None,
    }


def check_chat_request(settings: RenderSettings, chat_request: Mapping[str, Any] | None) -> None:
    """Insist on the chat request where parsers need it.

    Raises:
        RequestRejected: It is missing.
    """
    if settings.has_parsers and chat_request is None:
        raise RequestRejected(
            "chat_request is required when a tool or reasoning parser is configured because plain detokenization "
            "would leak raw parser markup into content."
        )


def skips_special_tokens(request: Mapping[str, Any] | None) -> bool:
    """Tell whether special tokens are hidden; parsers decide that for themselves."""
    return request is None or request.get("skip_special_tokens") is not False


def has_tools(chat_request: Mapping[str, Any]) -> bool:
    """Tell whether tool calls are to be found in the answer."""
    return bool(chat_request.get("tools")) and chat_request.get("tool_choice") != "none"


def _num_generated(generated: Generated) -> int:
    return sum(len(choice.token_ids or ()) for choice in generated.choices)


def _text(model: ModelFolder, choice: GeneratedChoice, seed: list[int] | None, *, skip_special_tokens: bool) -> str:
    if not choice.token_ids:
        raise RequestRejected(f"choice {choice.index} has empty or null token_ids")
    state = seeded_state(model, seed)
    return decode_next(model, state, choice.token_ids, skip_special_tokens=skip_special_tokens)[0]


def _chat_choice(
    model: ModelFolder, settings: RenderSettings, request: DerenderChatRequest, choice: GeneratedChoice
) -> dict[str, Any]:
    chat_request = request.chat_request or {}
    seed = request.prompt_token_ids or request.generate_response.prompt_token_ids
    skips = not settings.has_parsers and skips_special_tokens(chat_request)
    text = _text(model, choice, seed, skip_special_tokens=skips)
    returns_ids = chat_request.get("return_token_ids") and chat_request.get("include_reasoning") is not False
    return {
        "index": choice.index,
        "message": _message(text, chat_request, model.eos_text, is_open=is_thinking(model, seed or []))
        if settings.has_parsers
        else _plain_message(text),
        "logprobs": None if choice.logprobs is None else chat_logprobs(model, choice.logprobs, ()),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": choice.token_ids if returns_ids else None,
        "routed_experts": None,
    }


def _plain_message(content: str | None) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": content,
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }


def _message(text: str, chat_request: Mapping[str, Any], eos_text: str | None, *, is_open: bool) -> dict[str, Any]:
    if is_open and END_THINK in text and eos_text:
        # vLLM's qwen3 parser drops the end of a complete answer; where it has nothing to parse the end stays.
        text = text.removesuffix(eos_text)
    parsed = parse_output(text, is_thinking=is_open, has_tools=has_tools(chat_request), is_finished=True)
    content: str | None = parsed.content
    if not parsed.content.strip() if parsed.calls else not parsed.content:
        is_forced = isinstance(chat_request.get("tool_choice"), dict) or chat_request.get("tool_choice") == "required"
        content = "" if is_forced else None
    message = _plain_message(content)
    if parsed.calls:
        # vLLM shows the key only when there are calls, before `reasoning`.
        del message["reasoning"]
        message["tool_calls"] = [
            {
                "id": uuid.uuid4().hex[:16],
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in parsed.calls
        ]
    message["reasoning"] = parsed.reasoning or None if chat_request.get("include_reasoning") is not False else None
    return message


def _completion_choice(model: ModelFolder, index: int, choice: GeneratedChoice, text: str) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None if choice.logprobs is None else completion_logprobs(model, choice.logprobs, (), 0),
        "finish_reason": choice.finish_reason,
        "stop_reason": choice.stop_reason,
        "token_ids": None,
        "prompt_logprobs": None,
        "prompt_token_ids": None,
        "routed_experts": None,
    }
