"""How many tokens an answer may have: what the prompt leaves of the context (RFC: `context_budget_mode`).

The refusals are native vLLM's (0.32: `renderers/params.py`, `sampling_params.py`), so that a context configured smaller
than the sidecar's is kept in the words in which engines of that context would keep it.
"""

from collections.abc import Sequence
from dataclasses import replace

from motor.coordinator.domain.errors import RequestInvalid
from motor.coordinator.domain.request import ClientRequest
from motor.coordinator.render.models import TokenizedRequest


def within_context(client: ClientRequest, request: TokenizedRequest, max_model_len: int) -> TokenizedRequest:
    """Return the request with `max_tokens` no larger than the context leaves, in `sampling_params` too.

    Args:
        client: Whose request it is.
        request: One tokenized prompt; its ids are exact.
        max_model_len: Context in tokens, of the prompt and each choice together.

    Raises:
        RequestInvalid: The prompt leaves nothing, with native vLLM's message.
    """
    num_left = max_model_len - request.num_prompt_tokens
    if num_left < 0:
        raise _too_long(client, request, max_model_len)
    if num_left == 0:
        raise RequestInvalid("max_tokens must be at least 1, got 0.", param="max_tokens")
    if request.max_tokens <= num_left:
        return request
    return replace(request, sampling_params={**request.sampling_params, "max_tokens": num_left})


def _too_long(client: ClientRequest, request: TokenizedRequest, max_model_len: int) -> RequestInvalid:
    # Native vLLM tokenizes text no further than one token over the context, and says so.
    num_counted = request.num_prompt_tokens
    if not _is_of_ids(client, request.prompt_index):
        num_counted = max_model_len + 1
    qualifier = "at least " if num_counted == max_model_len + 1 else ""
    return RequestInvalid(
        f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
        f"{qualifier}{num_counted} input tokens, which exceeds this limit even without any output tokens. "
        "Please reduce the length of the input prompt.",
        param="input_tokens",
    )


def _is_of_ids(client: ClientRequest, prompt_index: int) -> bool:
    """Whether the client gave this prompt as token ids."""
    prompt = client.fields.get("prompt")
    if not isinstance(prompt, Sequence) or isinstance(prompt, str) or not prompt:
        return False
    if isinstance(prompt[0], int):
        return True
    return prompt_index < len(prompt) and not isinstance(prompt[prompt_index], str)
