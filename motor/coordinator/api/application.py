"""The two ASGI applications: the public API and the management API."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from motor.coordinator.api.endpoints import Edge, NativeEndpoint, OpenAiEndpoint
from motor.coordinator.domain.request import Api

NATIVE_PATHS = (
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/generate",
)
"""Served by engines alone. An explicit list: engines have routes that no stranger may reach (sleep, abort, reset)."""

Readiness = Callable[[], Awaitable[Sequence[str]]]
"""Returns the reasons why no request could be served; empty when ready."""

DecisionsOf = Callable[[str], list[dict[str, Any]] | None]
"""Returns why a request was sent where it was; `None` if nobody remembers."""


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One entry of `GET /v1/models`."""

    id: str
    created: int
    max_model_len: int | None

    def as_json(self) -> dict[str, object]:
        """Return the entry in native vLLM's shape."""
        return {
            "id": self.id,
            "object": "model",
            "created": self.created,
            "owned_by": "vllm",
            "root": self.id,
            "parent": None,
            "max_model_len": self.max_model_len,
            "permission": [],
        }


def public_application(edge: Edge, readiness: Readiness, models: Sequence[ModelCard]) -> Starlette:
    """Return the application that clients reach."""

    async def list_models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [model.as_json() for model in models]})

    return Starlette(
        routes=[
            Route(Api.CHAT.path, OpenAiEndpoint(edge, Api.CHAT), methods=["POST"]),
            Route(Api.COMPLETIONS.path, OpenAiEndpoint(edge, Api.COMPLETIONS), methods=["POST"]),
            *(Route(path, NativeEndpoint(edge), methods=["POST"]) for path in NATIVE_PATHS),
            Route("/v1/models", list_models),
            *_status_routes(edge, readiness),
        ],
        exception_handlers={404: _not_found, 405: _method_not_allowed},
    )


def management_application(edge: Edge, readiness: Readiness, decisions_of: DecisionsOf) -> Starlette:
    """Return the application that operators reach."""

    async def request_timing(request: Request) -> Response:
        times = edge.recent.times_of(_logged_id(request))
        if times is None:
            return JSONResponse({"detail": "unknown request"}, status_code=404)
        return JSONResponse({f"{stage}_ms": milliseconds for stage, milliseconds in times.items()})

    async def schedule(request: Request) -> Response:
        request_id = _logged_id(request)
        decisions = decisions_of(request_id)
        if decisions is None:
            return JSONResponse({"detail": "unknown request"}, status_code=404)
        return JSONResponse({"request_id": request_id, "decisions": decisions})

    return Starlette(
        routes=[
            Route("/debug/request-timing", request_timing),
            Route("/debug/schedule", schedule),
            *_status_routes(edge, readiness),
        ]
    )


def _logged_id(request: Request) -> str:
    """Return the request id that an operator asks for; the answer's own id, which has a prefix, will do as well."""
    request_id = request.query_params.get("request_id", "")
    for api in Api:
        request_id = request_id.removeprefix(api.id_prefix)
    return request_id


def _status_routes(edge: Edge, readiness: Readiness) -> list[Route]:
    async def health(request: Request) -> Response:
        return Response(status_code=200)

    async def ready(request: Request) -> Response:
        reasons = await readiness()
        return JSONResponse({"ready": not reasons, "reasons": list(reasons)}, status_code=503 if reasons else 200)

    async def metrics(request: Request) -> Response:
        payload, content_type = edge.metrics.render()
        return Response(payload, headers={"content-type": content_type})

    return [Route("/health", health), Route("/ready", ready), Route("/metrics", metrics)]


async def _not_found(request: Request, error: Exception) -> Response:
    return JSONResponse({"detail": "Not Found"}, status_code=404)


async def _method_not_allowed(request: Request, error: Exception) -> Response:
    headers = getattr(error, "headers", None)
    return JSONResponse({"detail": "Method Not Allowed"}, status_code=405, headers=headers)
