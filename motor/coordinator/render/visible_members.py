"""The members of a derendered choice that clients see: what is set, as native vLLM sends it. Pure."""

from typing import Any

from motor.coordinator.render.models import DerenderedChoice


def visible_members(shown: DerenderedChoice) -> dict[str, Any]:
    """Return a choice's delta, or its text as the member `text`, without nulls; the role is ours to send, once."""
    if shown.text is not None:
        return {"text": shown.text}
    return {
        key: _without_nulls(value) for key, value in (shown.delta or {}).items() if value is not None and key != "role"
    }


def _without_nulls(value: Any) -> Any:
    """Drop null members at any depth: native vLLM sends only what is set."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
