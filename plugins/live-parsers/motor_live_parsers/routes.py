"""Routes for clients that know the plugin: calls that name a live stream instead of bringing its history.

A stock vLLM answers 404 on all of them, so a client that is sent from a sidecar with the plugin to one without can
never get a wrong text. The wire contract is in `docs/live-parsers.md`.
"""

import secrets
from dataclasses import asdict, replace
from http import HTTPStatus
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from vllm.entrypoints.scale_out.derender.api_router import derender as serving_derender_of
from vllm.entrypoints.scale_out.derender.serving import ServingDerender
from vllm.entrypoints.scale_out.token_in_token_out.protocol import (
    DerenderChatStreamRequest,
    GenerateTokensStreamResponse,
)
from vllm.entrypoints.serve.engine.protocol import ErrorResponse
from vllm.entrypoints.serve.utils.api_utils import validate_json_request

from motor_live_parsers.kept_streams import CarriedState, Store, SuspendedStream, store_of
from motor_live_parsers.settings import Settings

LIVE_PATH = "/v1/chat/completions/derender/live"
CONTINUE_PATH = LIVE_PATH + "/continue"

# Raised when a client of an older contract could misread an answer.
CONTRACT_VERSION = 1

# What a client can't know from the engine's chunks.
_STATE_FIELDS_WITHOUT_HISTORY = {"role_sent", "tools_streamed", "last_tool_call_ids"}

_BYTES_PER_TOKEN = 4
_CONTINUATION_BYTES = 16


class ContinueRequest(BaseModel):
    """Body of `CONTINUE_PATH`.

    Attributes:
        continuation: From the answer to the previous call of the stream; good for one call.
        generate_chunk: What the engine sent since, at most one choice.
    """

    continuation: str
    generate_chunk: GenerateTokensStreamResponse


def add_routes(router: APIRouter, settings: Settings) -> None:
    """Add the routes to vLLM's derender router, which is included in the application later."""

    def locate(raw_request: Request) -> tuple[ServingDerender, Store] | JSONResponse:
        serving = serving_derender_of(raw_request)
        if serving is None or serving.online_derenderer.parser is None:
            # Without a parser vLLM's own streaming derender is O(chunk) already.
            return _error(HTTPStatus.NOT_FOUND, "This server has no parser that could be kept alive.", "not_found")
        return serving, store_of(serving.online_derenderer, settings)

    @router.get(LIVE_PATH, include_in_schema=False)
    async def describe_live_parsers(raw_request: Request) -> JSONResponse:
        located = locate(raw_request)
        if isinstance(located, JSONResponse):
            return located
        statistics = asdict(located[1].statistics())
        return JSONResponse({"version": CONTRACT_VERSION, **statistics})

    @router.post(LIVE_PATH, include_in_schema=False, dependencies=[Depends(validate_json_request)])
    async def start_live_stream(request: DerenderChatStreamRequest, raw_request: Request) -> JSONResponse:
        located = locate(raw_request)
        if isinstance(located, JSONResponse):
            return located
        num_request_tokens = len(await raw_request.body()) // _BYTES_PER_TOKEN
        start = request.model_copy(update={"stream_state": CarriedState.of(request.stream_state)})
        serving, store = located
        return await _answer(serving, store, SuspendedStream(start, num_request_tokens))

    @router.post(CONTINUE_PATH, include_in_schema=False, dependencies=[Depends(validate_json_request)])
    async def continue_live_stream(request: ContinueRequest, raw_request: Request) -> JSONResponse:
        located = locate(raw_request)
        if isinstance(located, JSONResponse):
            return located
        serving, store = located
        stream = store.take(request.continuation.encode())
        if not isinstance(stream, SuspendedStream):
            return _error(
                HTTPStatus.CONFLICT,
                "The continuation is not known here; repeat the call with the full history.",
                "unknown_continuation",
            )
        next_request = stream.request.model_copy(update={"generate_chunk": request.generate_chunk})
        return await _answer(serving, store, replace(stream, request=next_request))


async def _answer(serving: ServingDerender, store: Store, stream: SuspendedStream) -> JSONResponse:
    result = await serving.derender_chat_stream_response(stream.request)
    if isinstance(result, ErrorResponse):
        return JSONResponse(result.model_dump(), status_code=result.error.code)
    chunk, state = result
    continuation = None
    if isinstance(state, CarriedState) and state.is_live:
        continuation = secrets.token_hex(_CONTINUATION_BYTES)
        suspended = replace(stream, request=stream.request.model_copy(update={"stream_state": state}))
        num_tokens = stream.num_request_tokens + len(state.output_token_ids)
        store.put(continuation.encode(), suspended, num_tokens)
    return JSONResponse(
        {
            "chunk": chunk.model_dump(),
            "stream_state": state.model_dump(include=_STATE_FIELDS_WITHOUT_HISTORY),
            "continuation": continuation,
        }
    )


def _error(status: HTTPStatus, message: str, code: str) -> JSONResponse:
    error: dict[str, Any] = {"message": message, "type": status.phrase, "param": None, "code": code}
    return JSONResponse({"error": error}, status_code=status)
