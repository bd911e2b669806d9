"""The metaserver: where decode engines call for their prefill (Trigger). Not for clients: a server of its own."""

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from motor.coordinator.api.request_parsing import read_body
from motor.coordinator.domain.errors import BodyTooLarge, ClientGone, MotorError, RequestInvalid
from motor.coordinator.router.trigger import Metaserver
from motor.coordinator.wire.openai import decode_request, error_payload

MAX_BODY_BYTES = 1024 * 1024
_JSON = "application/json"


def metaserver_application(metaserver: Metaserver) -> Starlette:
    """Return the application that decode engines reach."""

    async def prefill(request: Request) -> Response:
        try:
            body = await read_body(request.scope, request.receive, MAX_BODY_BYTES)
            posted = decode_request(body)
            if posted is None:
                raise RequestInvalid("the body must be a JSON object")
            answer = await metaserver.prefill(request.path_params["token"], posted)
        except (BodyTooLarge, ClientGone, MotorError) as error:
            return Response(error_payload(error), error.status, media_type=_JSON)
        return Response(msgspec.json.encode(answer), media_type=_JSON)

    return Starlette(routes=[Route("/v1/metaserver/{token}", prefill, methods=["POST"])])
