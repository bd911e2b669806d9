"""What the sidecar's answers mean: statuses and bodies to the rows of the fault table (RFC: 故障处理)."""

from typing import TypeVar

import msgspec

from motor.coordinator.domain.errors import (
    DerenderFault,
    DerenderRejected,
    DerenderUnavailable,
    DerenderUnsupported,
    RenderFailed,
    RenderFault,
    RenderRejected,
    RenderUnsupported,
)
from motor.coordinator.transport.http_pool import HttpResponse
from motor.coordinator.wire.openai import parse_error

ROUTE_ABSENT = frozenset({403, 404, 405, 501})
"""Statuses of a route that this vLLM doesn't have, or has turned off."""

_EMPTY_PROMPT, _NATIVE_EMPTY_PROMPT = "No token_ids rendered", "The decoder prompt cannot be empty"
"""Of one mistake, Render's words and native vLLM's, whose engine says them."""

Answer = TypeVar("Answer")


def decoded(answer: HttpResponse, decoder: "msgspec.json.Decoder[Answer]") -> Answer:
    if answer.status != 200:
        raise derender_error(answer)
    try:
        return decoder.decode(answer.body)
    except msgspec.DecodeError as error:
        raise DerenderUnavailable("Derender's answer is not an OpenAI response") from error


def render_error(answer: HttpResponse, *, is_stream: bool) -> RenderRejected | RenderFault:
    """Map a status of /render: validation is the client's error, anything else is a reason to fall back."""
    body = parse_error(answer.body)
    message = body.message if body is not None else f"Render answered {answer.status}"
    is_openai_error = body is not None and b'"error"' in answer.body
    # An unknown model is 404 with an OpenAI body; an absent route is 404 with {"detail": ...}.
    if answer.status in ROUTE_ABSENT and not (answer.status == 404 and is_openai_error):
        return RenderUnsupported(message)
    if answer.status >= 500 or answer.status == 401:
        return RenderFailed(message)
    if message == _EMPTY_PROMPT:
        rejection = RenderRejected(_NATIVE_EMPTY_PROMPT, status=answer.status)
        rejection.is_event = is_stream
        return rejection
    return RenderRejected(message, status=answer.status, raw_body=answer.body)


def derender_error(answer: HttpResponse) -> DerenderFault:
    body = parse_error(answer.body)
    message = f"Derender answered {answer.status}" + (f": {body.message}" if body is not None else "")
    if answer.status in ROUTE_ABSENT:
        return DerenderUnsupported(message)
    if answer.status in (400, 422):
        return DerenderRejected(message, status=answer.status)
    return DerenderUnavailable(message)
