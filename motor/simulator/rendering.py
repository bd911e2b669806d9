"""OpenAI request to GenerateRequest, as vLLM's render endpoints do it."""

import uuid
from collections.abc import Mapping
from typing import Any

from motor.simulator.answers import RequestRejected, schema_error
from motor.simulator.model_folder import ModelFolder
from motor.simulator.native_text import chat_prompt, completion_prompts
from motor.simulator.render_settings import RenderSettings

_VANISHING_MAX_TOKENS = 16
"""vLLM leaves out what equals its default, so that a limit of 16 disappears."""
_COPIED = (
    ("min_tokens", 0),
    ("seed", None),
    ("top_k", 0),
    ("logit_bias", None),
    ("ignore_eos", False),
    ("include_stop_str_in_output", False),
    ("prompt_logprobs", None),
)


def render_chat(
    model: ModelFolder, settings: RenderSettings, body: Mapping[str, Any], header_id: str | None
) -> dict[str, Any]:
    """Return the GenerateRequest of a chat request.

    Raises:
        RequestRejected: vLLM would refuse the request.
    """
    messages = body.get("messages")
    if isinstance(messages, list) and not messages:
        raise RequestRejected("messages must not be empty", param="messages")
    ids = chat_prompt(model, body)
    wanted = body.get("max_completion_tokens")
    param = "max_tokens" if wanted is None else "max_completion_tokens"
    wanted = body.get("max_tokens") if wanted is None else wanted
    sampling = _sampling(settings, body, len(ids), wanted, param, keeps_special=settings.has_parsers)
    if body.get("logprobs"):
        sampling["logprobs"] = body.get("top_logprobs") or 0
    request = _envelope(f"chatcmpl-{_base_id(body, header_id)}", ids, sampling, body)
    if settings.has_parsers:
        variables = body.get("chat_template_kwargs") or {}
        request["reasoning_ended"] = not is_thinking(model, ids) or body.get("include_reasoning") is False
        request["reasoning_parser_kwargs"] = {
            "chat_template_kwargs": {
                "cohere_format": "cmd4",
                **variables,
                "add_generation_prompt": body.get("add_generation_prompt", True),
                "continue_final_message": body.get("continue_final_message", False),
            }
        }
    return request


def render_completions(
    model: ModelFolder, settings: RenderSettings, body: Mapping[str, Any], header_id: str | None
) -> list[dict[str, Any]]:
    """Return the GenerateRequest of each prompt.

    Raises:
        RequestRejected: vLLM would refuse the request.
    """
    prompts = completion_prompts(model, body)
    wanted = body.get("max_tokens")
    limit = _VANISHING_MAX_TOKENS if wanted is None else wanted
    base_id = f"cmpl-{_base_id(body, header_id)}"
    requests = []
    for position, ids in enumerate(prompts):
        sampling = _sampling(settings, body, len(ids), limit, "max_tokens", keeps_special=False)
        if body.get("logprobs") is not None:
            sampling["logprobs"] = body["logprobs"]
        request_id = base_id if len(prompts) == 1 else f"{base_id}-{position}"
        requests.append(_envelope(request_id, ids, sampling, body))
    return requests


def is_thinking(model: ModelFolder, prompt_ids: list[int]) -> bool:
    """Tell whether a prompt leaves thinking open, as the qwen3 parser sees it: unless it ends thinking itself."""
    end: int | None = model.tokenizer.token_to_id("</think>")
    start: int | None = model.tokenizer.token_to_id("<think>")
    for token_id in reversed(prompt_ids):
        if token_id == end:
            return False
        if token_id == start:
            return True
        if token_id == model.eos_token_id:
            break
    return end is not None


def _base_id(body: Mapping[str, Any], header_id: str | None) -> str:
    return header_id or body.get("request_id") or uuid.uuid4().hex[:16]


def _sampling(
    settings: RenderSettings,
    body: Mapping[str, Any],
    num_prompt: int,
    wanted: object,
    param: str,
    *,
    keeps_special: bool,
) -> dict[str, Any]:
    limit = _max_tokens(settings, num_prompt, wanted, param)
    n, temperature = 1 if body.get("n") is None else body["n"], body.get("temperature")
    temperature = 1.0 if temperature is None else temperature
    if not isinstance(n, int) or isinstance(temperature, (str, bool)) or not isinstance(temperature, int | float):
        raise schema_error("body.n" if not isinstance(n, int) else "body.temperature", "Input should be a valid number")
    if n < 1:
        raise RequestRejected(f"n must be at least 1, got {n}.", param="n")
    if temperature < 0:
        raise RequestRejected(f"temperature must be non-negative, got {temperature}.", param="temperature")
    if n > 1 and temperature == 0:
        raise RequestRejected(f"n must be 1 when using greedy sampling, got {n}.")
    stop = _stop_strings(body)
    fields: dict[str, Any] = {"n": n} if n > 1 else {}
    fields |= {
        "presence_penalty": float(body.get("presence_penalty") or 0.0),
        "frequency_penalty": float(body.get("frequency_penalty") or 0.0),
        "repetition_penalty": float(body.get("repetition_penalty") or 1.0),
        "temperature": float(temperature),
    }
    if temperature > 0:
        fields |= {"top_p": float(body.get("top_p") or 1.0), "min_p": float(body.get("min_p") or 0.0)}
    fields |= {name: body[name] for name, default in _COPIED if body.get(name) not in (None, default)}
    if body.get("echo") and body.get("logprobs") is not None:
        fields["prompt_logprobs"] = body["logprobs"]
    fields |= {"stop": stop, "stop_token_ids": list(body.get("stop_token_ids") or ())}
    if limit != _VANISHING_MAX_TOKENS:
        fields["max_tokens"] = limit
    if keeps_special or body.get("skip_special_tokens") is False:
        fields["skip_special_tokens"] = False
    fields |= {"output_kind": 1 if body.get("stream") else 2, "skip_clone": True}
    if stop and not body.get("include_stop_str_in_output"):
        fields["output_text_buffer_length"] = max(map(len, stop)) - 1
    if keeps_special and (outputs := _structured_outputs(body)) is not None:
        fields["structured_outputs"] = outputs
    fields |= {"bad_words": [], "skip_reading_prefix_cache": "prompt_logprobs" in fields}
    if body.get("kv_transfer_params") is not None:
        fields["extra_args"] = {"kv_transfer_params": body["kv_transfer_params"]}
    return fields


def _structured_outputs(body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the constraint of a response format or of a forced tool; a tag stands for vLLM's grammar of the tools."""
    response_format = body.get("response_format") or {}
    kind = response_format.get("type")
    choice = body.get("tool_choice")
    is_forced = choice == "required" or isinstance(choice, dict) or body.get("parallel_tool_calls") is False
    has_forced_tool = bool(body.get("tools")) and choice != "none" and is_forced
    if kind not in ("json_schema", "json_object") and not has_forced_tool:
        return None
    return {
        "json": response_format["json_schema"].get("schema") if kind == "json_schema" else None,
        "regex": None,
        "choice": None,
        "grammar": None,
        "json_object": True if kind == "json_object" else None,
        "disable_any_whitespace": False,
        "disable_additional_properties": False,
        "whitespace_pattern": None,
        "structural_tag": '{"type": "structural_tag", "format": {"type": "any_text"}}' if has_forced_tool else None,
        "_backend": None,
        "_backend_was_auto": False,
    }


def _stop_strings(body: Mapping[str, Any]) -> list[str]:
    stop = body.get("stop") or []
    stops = [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(item, str) for item in stops):
        raise schema_error("body.stop", "Input should be a valid string", "string_type")
    return stops


def _max_tokens(settings: RenderSettings, num_prompt: int, wanted: object, param: str) -> int:
    context = settings.max_model_len
    if num_prompt >= context:
        raise RequestRejected(
            f"This model's maximum context length is {context} tokens. However, your prompt contains {num_prompt} "
            "input tokens, which exceeds this limit even without any output tokens. "
            "Please reduce the length of the input prompt.",
            param="input_tokens",
        )
    if wanted is None:
        return context - num_prompt
    if not isinstance(wanted, int) or isinstance(wanted, bool):
        raise schema_error(f"body.{param}", "Input should be a valid integer", "int_type")
    if wanted > context:
        raise RequestRejected(f"{param}={wanted} cannot be greater than max_model_len={context}.", param=param)
    if wanted < 1:
        raise RequestRejected(f"{param} must be at least 1, got {wanted}.", param=param)
    return min(wanted, context - num_prompt)


def _envelope(request_id: str, ids: list[int], sampling: dict[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    is_stream = bool(body.get("stream"))
    options = body.get("stream_options") if is_stream else None
    return {
        "request_id": request_id,
        "token_ids": ids,
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": sampling,
        "model": body.get("model"),
        "reasoning_ended": None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": None,
        "output_mode": "tokens",
        "stream": is_stream,
        "stream_options": None
        if options is None
        else {"include_usage": False, "continuous_usage_stats": False, **options},
        "cache_salt": body.get("cache_salt"),
        "priority": body.get("priority") or 0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }
