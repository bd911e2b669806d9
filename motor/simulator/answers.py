"""Answers in vLLM's shapes: JSON with every field, and its error objects."""

from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

JSON = "application/json"
_encoder = msgspec.json.Encoder()


class RequestRejected(Exception):
    """A request that vLLM answers with an error object.

    Attributes:
        status: The HTTP status, also the object's `code`.
        error_type: The object's `type`.
        param: The object's `param`.
    """

    def __init__(
        self, message: str, *, status: int = 400, error_type: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.error_type = error_type
        self.param = param

    @property
    def body(self) -> dict[str, Any]:
        """The error object."""
        return error_body(str(self), self.error_type, self.status, self.param)


def error_body(message: str, error_type: str, code: int, param: str | None = None) -> dict[str, Any]:
    """Return vLLM's error object."""
    return {"error": {"message": message, "type": error_type, "param": param, "code": code}}


def model_not_found(name: object) -> RequestRejected:
    """Return the 404 for a model that isn't served."""
    return RequestRejected(f"The model `{name}` does not exist.", status=404, error_type="NotFoundError", param="model")


def schema_error(loc: str, message: str, kind: str = "value_error") -> RequestRejected:
    """Return the 400 of a body that doesn't fit the schema; `loc` is the dotted place, as `body.prompt`."""
    entry = {"type": kind, "loc": loc, "msg": message}
    return RequestRejected(f"1 validation error:\n  {entry}", error_type="Bad Request", param=loc)


def internal_error() -> RequestRejected:
    """Return the 500 of a generation that failed in the engine."""
    return RequestRejected("Internal server error", status=500, error_type="InternalServerError")


def encode(value: object) -> bytes:
    """Return compact UTF-8 JSON."""
    return _encoder.encode(value)


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a JSON response."""
    return web.Response(body=_encoder.encode(value), status=status, content_type=JSON, headers=headers)


async def read_json(request: web.Request) -> dict[str, Any]:
    """Return the body's object.

    Raises:
        RequestRejected: Not declared as JSON, not JSON, or not an object; vLLM answers 400 to all three.
    """
    if request.content_type != JSON:
        raise RequestRejected(
            "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed",
            error_type="Bad Request",
        )
    body = await request.read()
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise schema_error("body.0", f"JSON decode error: {error}", "json_invalid") from error
    except RecursionError as error:
        raise RequestRejected("There was an error parsing the body", error_type="Bad Request") from error
    if not isinstance(decoded, dict):
        raise schema_error("body", "Input should be a valid dictionary", "model_attributes_type")
    return decoded
