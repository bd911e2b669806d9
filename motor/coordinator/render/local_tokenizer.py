"""The local tokenizer: token ids when Render gives none (RFC: Render Token In fallback).

It is loaded by the first request that needs it. What it gives is enough to schedule a request on the native chain,
not to build a token-only one: Render's sampling parameters and metadata are missing.
"""

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
import msgspec
from tokenizers import Tokenizer

from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.domain.tokens import SemanticTokenIds
from motor.coordinator.render.chat_template import RENDERING_ERRORS, ChatTemplate
from motor.coordinator.render.models import FallbackPrompts, TokenizerSource
from motor.coordinator.telemetry.log import get_logger

BYTES_PER_TOKEN = 4
"""Of text that can't be tokenized."""
LARGEST_BODY_BYTES = 1 << 20
"""A larger request is only estimated: tokenizing it takes seconds, which its answer would be late by."""

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
_log = get_logger(__name__)


class _TokenizerConfig(msgspec.Struct):
    chat_template: str | list[dict[str, str]] | None = None
    bos_token: str | dict[str, Any] | None = None
    eos_token: str | dict[str, Any] | None = None
    pad_token: str | dict[str, Any] | None = None
    unk_token: str | dict[str, Any] | None = None
    sep_token: str | dict[str, Any] | None = None
    cls_token: str | dict[str, Any] | None = None
    mask_token: str | dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Model:
    """A loaded folder; `templates` by name, `tool_use` beside `default` in some models."""

    tokenizer: Tokenizer
    templates: Mapping[str, ChatTemplate]

    def prompts_of(self, client: ClientRequest) -> list[SemanticTokenIds]:
        """Return the ids of every prompt; raises one of `RENDERING_ERRORS` for what only Render can tokenize."""
        fields = client.fields
        if client.api is Api.COMPLETIONS:
            adds_special = bool(fields.get("add_special_tokens", True))
            return [self._ids(prompt, adds_special) for prompt in _prompt_list(fields["prompt"])]
        if fields.get("chat_template") is not None:
            raise ValueError("the request has a template of its own")
        name = "tool_use" if fields.get("tools") and "tool_use" in self.templates else "default"
        return [self._ids(self.templates[name].render(fields), bool(fields.get("add_special_tokens", False)))]

    def _ids(self, prompt: object, adds_special: bool) -> SemanticTokenIds:
        if isinstance(prompt, list) and all(type(one) is int for one in prompt):
            return SemanticTokenIds(tuple(prompt))
        # A batch of one: unlike a single text it lets other threads run meanwhile.
        [encoding] = self.tokenizer.encode_batch_fast([prompt], add_special_tokens=adds_special)
        return SemanticTokenIds(tuple(encoding.ids))


class LocalTokenizer:
    """Tokenizes in a worker thread. Mutable: `_model`, `_was_tried`, which worker threads share under `_lock`.

    Args:
        path: The model's folder; without one every request is estimated.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._was_tried = False
        self._model: _Model | None = None

    @property
    def is_loaded(self) -> bool:
        """Whether a request has needed it, and it could be loaded."""
        return self._model is not None

    async def prompts_of(self, client: ClientRequest) -> FallbackPrompts:
        """Return the request's ids, or how many there may be if nobody can tell."""
        if self._path is None or len(client.body) > LARGEST_BODY_BYTES:
            return _estimated(client)
        prompts = await asyncio.to_thread(self._tokenize, client)
        if prompts is None:
            return _estimated(client)
        return FallbackPrompts(sum(map(len, prompts)), TokenizerSource.LOCAL, tuple(prompts))

    def _tokenize(self, client: ClientRequest) -> list[SemanticTokenIds] | None:
        model = self._loaded()
        if model is None:
            return None
        try:
            return model.prompts_of(client)
        except RENDERING_ERRORS as error:  # the message may hold the prompt
            _log.info("local_tokenizer.refused", error_type=type(error).__name__)
            return None

    def _loaded(self) -> _Model | None:
        with self._lock:
            if not self._was_tried and self._path is not None:
                self._was_tried = True
                self._model = _load(self._path)
            return self._model


def _estimated(client: ClientRequest) -> FallbackPrompts:
    return FallbackPrompts(max(1, len(client.body) // BYTES_PER_TOKEN), TokenizerSource.LENGTH)


def _prompt_list(prompt: Any) -> list[Any]:
    """Return the prompts of a completion request, each a text or a list of ids."""
    is_list_of_prompts = isinstance(prompt, list) and not all(type(one) is int for one in prompt)
    return prompt if is_list_of_prompts else [prompt]


def _load(path: Path) -> _Model | None:
    try:
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        templates = _load_templates(path)
    except Exception as error:  # noqa: BLE001 - the tokenizer library raises bare Exception for a file it can't use
        _log.warning("local_tokenizer.unusable", error_type=type(error).__name__, effect="prompts are estimated")
        return None
    _log.info("local_tokenizer.loaded", templates=sorted(templates))
    return _Model(tokenizer, templates)


def _load_templates(path: Path) -> dict[str, ChatTemplate]:
    """Return the folder's chat templates by name; none if it has none, or none that compiles."""
    file = path / "tokenizer_config.json"
    config = msgspec.json.decode(file.read_bytes(), type=_TokenizerConfig) if file.exists() else _TokenizerConfig()
    texts = {name: text for name in _SPECIAL_TOKENS if (text := _text_of(getattr(config, name))) is not None}
    own = path / "chat_template.jinja"
    sources: dict[str, str] = {}
    if own.exists():
        sources["default"] = own.read_text(encoding="utf-8")
    elif isinstance(config.chat_template, str):
        sources["default"] = config.chat_template
    elif config.chat_template is not None:
        sources = {one["name"]: one["template"] for one in config.chat_template}
    try:
        return {name: ChatTemplate(source, texts) for name, source in sources.items()}
    except jinja2.TemplateError as error:
        _log.warning("local_tokenizer.bad_template", error_type=type(error).__name__, effect="chats are estimated")
        return {}


def _text_of(token: str | dict[str, Any] | None) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
