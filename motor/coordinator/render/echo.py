"""`echo`: the text that the answer repeats before its own."""

from collections.abc import Mapping
from typing import Any

from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.render.choice_merge import answer_role
from motor.coordinator.render.models import TokenizedBatch


def echoed_texts(batch: TokenizedBatch) -> list[str]:
    """Return what each choice of the request repeats, by global choice index; empty strings without `echo`.

    Chat repeats the last message if the answer continues its role; completions repeat the prompt, which is text
    here (other prompts take the native chain), unless token ids are returned.
    """
    client = batch.client
    if not client.flag("echo"):
        return [""] * batch.num_choices
    if client.api is Api.CHAT:
        return [_last_message(client)] * batch.num_choices
    if client.flag("return_token_ids"):
        return [""] * batch.num_choices
    prompt = client.fields.get("prompt")
    texts = [prompt] if isinstance(prompt, str) else list(prompt or ())
    return [text for text, request in zip(texts, batch.prompts, strict=True) for _ in range(request.num_choices)]


def _last_message(client: ClientRequest) -> str:
    messages = client.fields.get("messages")
    message: Mapping[str, Any] = messages[-1] if messages else {}
    if message.get("role") != answer_role(client):
        return ""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or () if isinstance(part, Mapping))
