"""A model folder's tokenizer, chat template and special ids."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

_DEFAULT_MAX_MODEL_LEN = 4096


class ModelFolder:
    """What the simulators read of a model: tokenizer, chat template, context length and EOS ids.

    Args:
        path: The folder, as Hugging Face lays it out.

    Raises:
        OSError: `tokenizer.json` or `tokenizer_config.json` is missing.
        ValueError: A file can't be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.tokenizer: Tokenizer = Tokenizer.from_str((self.path / "tokenizer.json").read_text("utf-8"))
        self._settings = self._read_json("tokenizer_config.json", is_required=True)
        self._config = self._read_json("config.json")
        self.vocab_size: int = max(int(self._config.get("vocab_size", 0)), self.tokenizer.get_vocab_size())
        self.eos_token_id = self._eos_token_id()
        self.eos_token_ids = self._all_eos_token_ids()

    @property
    def max_model_len(self) -> int:
        """The context that the model was made for."""
        return int(self._config.get("max_position_embeddings", _DEFAULT_MAX_MODEL_LEN))

    @property
    def eos_text(self) -> str | None:
        """The text of the tokenizer's EOS."""
        return _token_text(self._settings.get("eos_token"))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids that `skip_special_tokens` hides."""
        added = self.tokenizer.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    @cached_property
    def plain_ids(self) -> tuple[int, ...]:
        """Ids that are text of their own: no special tokens, no parts of characters."""
        added = self.tokenizer.get_added_tokens_decoder()
        texts = ((token_id, self.tokenizer.decode([token_id])) for token_id in range(self.tokenizer.get_vocab_size()))
        return tuple(
            token_id
            for token_id, text in texts
            if token_id not in added and text.strip() and "\ufffd" not in text and text.isprintable()
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; markers such as `<think>` in it become their ids."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ids at once; incomplete characters show as U+FFFD."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
        return text

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the prompt of a conversation.

        Raises:
            jinja2.TemplateError: The template refuses the messages.
        """
        variables = {"add_generation_prompt": True, **(template_variables or {})}
        return self._template.render(
            messages=[_as_template_message(message) for message in messages],
            tools=list(tools) if tools else None,
            **self._special_texts,
            **variables,
        )

    @cached_property
    def _special_texts(self) -> dict[str, str]:
        names = ("bos_token", "eos_token", "pad_token", "unk_token")
        return {name: text for name in names if (text := _token_text(self._settings.get(name))) is not None}

    @cached_property
    def _template(self) -> jinja2.Template:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_template_error
        source = self._settings.get("chat_template")
        template_file = self.path / "chat_template.jinja"
        if source is None and template_file.exists():
            source = template_file.read_text("utf-8")
        if source is None:
            raise jinja2.TemplateError("the model has no chat template")
        return environment.from_string(source)

    def _eos_token_id(self) -> int | None:
        text = self.eos_text
        token_id: int | None = None if text is None else self.tokenizer.token_to_id(text)
        return token_id

    def _all_eos_token_ids(self) -> tuple[int, ...]:
        listed = self._read_json("generation_config.json").get("eos_token_id", [])
        ids = [listed] if isinstance(listed, int) else list(listed or [])
        if self.eos_token_id is not None and self.eos_token_id not in ids:
            ids.insert(0, self.eos_token_id)
        return tuple(ids)

    def _read_json(self, name: str, *, is_required: bool = False) -> dict[str, Any]:
        file = self.path / name
        if not is_required and not file.exists():
            return {}
        content: dict[str, Any] = json.loads(file.read_text("utf-8"))
        return content


def _as_template_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Join text parts and open tool arguments, as vLLM does before the template sees them."""
    prepared = dict(message)
    content = prepared.get("content")
    if isinstance(content, list):
        prepared["content"] = "\n".join(
            part if isinstance(part, str) else str(part.get("text", "")) for part in content
        )
    elif content is None:
        prepared["content"] = ""
    if calls := prepared.get("tool_calls"):
        prepared["tool_calls"] = [_with_open_arguments(call) for call in calls]
    return prepared


def _with_open_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function") or {})
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        function["arguments"] = json.loads(arguments) if arguments else {}
    return {**call, "function": function}


def _token_text(value: object) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_template_error(message: str) -> None:
    raise jinja2.TemplateError(message)
