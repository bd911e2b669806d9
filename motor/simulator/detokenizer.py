"""Incremental detokenization that never shows half a character; its state is the trailing tokens."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from motor.simulator.model_folder import ModelFolder

_SEED_LENGTH = 5
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class DetokenizerState:
    """Where decoding stands.

    Attributes:
        tokens: The trailing tokens, from the last clean boundary on.
        num_read: How many of them have been shown.
    """

    tokens: tuple[str, ...] = ()
    num_read: int = 0


def seeded_state(model: ModelFolder, prompt_ids: Iterable[int] | None) -> DetokenizerState:
    """Return the state after a prompt, whose last tokens decide how the first new one reads."""
    ids = list(prompt_ids or ())[-_SEED_LENGTH:]
    tokens = tuple(_token(model, token_id) for token_id in ids if token_id not in model.special_ids)
    return DetokenizerState(tokens, len(tokens))


def decode_next(
    model: ModelFolder, state: DetokenizerState, ids: Iterable[int], *, skip_special_tokens: bool
) -> tuple[str, DetokenizerState]:
    """Return the text that the next ids complete, and the state after them."""
    parts: list[str] = []
    for token_id in ids:
        if skip_special_tokens and token_id in model.special_ids:
            continue
        tokens = (*state.tokens, _token(model, token_id))
        shown = _join(model, tokens[: state.num_read])
        text = _join(model, tokens)
        if len(text) > len(shown) and not text.endswith(_REPLACEMENT):
            parts.append(text[len(shown) :])
            # The tokens shown so far are context for the next one; what stands before them is dead.
            state = DetokenizerState(tokens[state.num_read :], len(tokens) - state.num_read)
        else:
            state = replace(state, tokens=tokens)
    return "".join(parts), state


def _token(model: ModelFolder, token_id: int) -> str:
    token: str | None = model.tokenizer.id_to_token(token_id)
    return "" if token is None else token


@lru_cache(maxsize=1 << 16)
def _join(model: ModelFolder, tokens: tuple[str, ...]) -> str:
    if not tokens:
        return ""
    decoder = model.tokenizer.decoder
    text: str = " ".join(tokens) if decoder is None else decoder.decode(list(tokens))
    return text
