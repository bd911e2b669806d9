"""Text and prompts of the native endpoints, with a model's tokenizer or without any."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2

from motor.simulator.answers import RequestRejected, schema_error
from motor.simulator.chunk_plan import Chunk
from motor.simulator.detokenizer import DetokenizerState, decode_next
from motor.simulator.model_folder import ModelFolder


def chat_prompt(model: ModelFolder | None, body: Mapping[str, Any]) -> list[int]:
    """Return a conversation's ids; without a model the bytes of its JSON.

    Raises:
        RequestRejected: No messages, or the template refuses them.
    """
    messages = body.get("messages")
    if not isinstance(messages, list):
        raise schema_error("body.messages", "Field required", "missing")
    if model is None:
        return list(json.dumps(messages).encode())
    try:
        return model.encode(model.render_chat(messages, body.get("tools"), body.get("chat_template_kwargs")))
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise RequestRejected(str(error) or type(error).__name__) from error


def completion_prompts(model: ModelFolder | None, body: Mapping[str, Any]) -> list[list[int]]:
    """Return the ids of each prompt: a text, ids, or a list of either.

    Raises:
        RequestRejected: No prompt, an empty one, or one of another type.
    """
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        prompts: list[Any] = [prompt]
    elif isinstance(prompt, list) and prompt and all(isinstance(item, int) for item in prompt):
        prompts = [prompt]
    elif isinstance(prompt, list) and prompt:
        prompts = prompt
    else:
        raise RequestRejected("Either prompt or prompt_embeds must be provided and non-empty.", param="prompt")
    return [_prompt_ids(model, item) for item in prompts]


def _prompt_ids(model: ModelFolder | None, prompt: object) -> list[int]:
    if isinstance(prompt, str):
        ids = list(prompt.encode()) if model is None else model.encode(prompt)
    elif isinstance(prompt, Sequence) and all(isinstance(item, int) for item in prompt):
        ids = list(prompt)
    else:
        raise schema_error("body.prompt", "Input should be a valid string", "string_type")
    if not ids:
        raise RequestRejected("The decoder prompt cannot be empty", param="prompt")
    return ids


class GrowingText:
    """One choice's text as ids arrive; everything changes with `add`.

    Args:
        model: The tokenizer's side of the model; None shows each id as a word.
        stop_strings: Strings that end the text and are cut off it.
    """

    def __init__(self, model: ModelFolder | None, stop_strings: Sequence[str]) -> None:
        self._model = model
        self._held_back = max(map(len, stop_strings), default=1) - 1
        self._state = DetokenizerState()
        self._pending = ""

    def add(self, chunk: Chunk) -> str:
        """Return the text that a chunk makes final: never a half character, never a part of a stop string."""
        if self._model is None:
            delta = "".join([f" w{token_id}" for token_id in chunk.ids])
        else:
            delta, self._state = decode_next(self._model, self._state, chunk.ids, skip_special_tokens=True)
        pending = self._pending + delta
        if chunk.finish_reason is not None:
            cut = pending.find(chunk.stop_reason) if isinstance(chunk.stop_reason, str) else -1
            return pending if cut < 0 else pending[:cut]
        end = max(0, len(pending) - self._held_back)
        self._pending = pending[end:]
        return pending[:end]
