"""Logprobs of token ids to logprobs of texts, in the shapes of chat and of completions."""

from collections.abc import Iterable, Mapping
from typing import Any

from motor.simulator.detokenizer import DetokenizerState, decode_next
from motor.simulator.model_folder import ModelFolder

_CONTEXT_LENGTH = 4


def context_tail(context: Iterable[int], ids: Iterable[int]) -> list[int]:
    """Return the ids that the next logprobs' texts depend on."""
    return [*context, *ids][-_CONTEXT_LENGTH:]


def chat_logprobs(model: ModelFolder, logprobs: Mapping[str, Any], context: Iterable[int]) -> dict[str, Any]:
    """Return chat logprobs; a token that completes no character has an empty text."""
    return {"content": [_chat_entry(model, entry, before) for entry, before in _with_context(model, logprobs, context)]}


def completion_logprobs(
    model: ModelFolder, logprobs: Mapping[str, Any], context: Iterable[int], text_offset: int
) -> dict[str, Any]:
    """Return completion logprobs; offsets count characters from `text_offset`."""
    offsets: list[int] = []
    tokens: list[str] = []
    tops: list[dict[str, float]] = []
    for entry, before in _with_context(model, logprobs, context):
        offsets.append(text_offset)
        tokens.append(_text(model, before, entry["token_id"]))
        tops.append({_text(model, before, top["token_id"]): top["logprob"] for top in entry["top_logprobs"]})
        text_offset += len(tokens[-1])
    return {
        "text_offset": offsets,
        "token_logprobs": [entry["logprob"] for entry in logprobs["content"]],
        "tokens": tokens,
        "top_logprobs": tops,
    }


def _with_context(
    model: ModelFolder, logprobs: Mapping[str, Any], context: Iterable[int]
) -> Iterable[tuple[Mapping[str, Any], DetokenizerState]]:
    _, state = decode_next(model, DetokenizerState(), context, skip_special_tokens=False)
    for entry in logprobs["content"]:
        yield entry, state
        _, state = decode_next(model, state, [entry["token_id"]], skip_special_tokens=False)


def _text(model: ModelFolder, before: DetokenizerState, token_id: int) -> str:
    text, _ = decode_next(model, before, [token_id], skip_special_tokens=False)
    return text.replace("\ufffd", "")


def _chat_entry(model: ModelFolder, entry: Mapping[str, Any], before: DetokenizerState) -> dict[str, Any]:
    tops = [_chat_token(model, top, before) for top in entry["top_logprobs"]]
    return {**_chat_token(model, entry, before), "top_logprobs": tops}


def _chat_token(model: ModelFolder, entry: Mapping[str, Any], before: DetokenizerState) -> dict[str, Any]:
    text = _text(model, before, entry["token_id"])
    return {"token": text, "logprob": entry["logprob"], "bytes": list(text.encode())}
