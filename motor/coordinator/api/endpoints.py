"""The ASGI endpoints: every exchange passes `Exchange`, which owns error bodies and the request's log line."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from motor.coordinator.api.client_sink import ClientSink, serve_while_connected
from motor.coordinator.api.connection import reset_of
from motor.coordinator.api.request_limits import RequestLimits
from motor.coordinator.api.request_parsing import (
    TraceHeaders,
    header,
    native_request,
    parse_client_request,
    read_body,
)
from motor.coordinator.domain.errors import ClientGone, MotorError, RequestInvalid, TooManyRequests
from motor.coordinator.domain.request import Api
from motor.coordinator.pipeline import Exchange, Pipeline
from motor.coordinator.telemetry.log import bind_request, get_logger
from motor.coordinator.telemetry.metrics import Metrics
from motor.coordinator.telemetry.recent_requests import RecentRequests
from motor.coordinator.telemetry.stages import StageClock
from motor.coordinator.wire.openai import error_event_payload, error_payload
from motor.coordinator.wire.sse import DONE_EVENT, EVENT_STREAM_HEADERS, encode_event

_log = get_logger(__name__)
_SHUTDOWN = "the server is shutting down"


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """What the edge allows a client.

    Attributes:
        max_body_bytes: Of a request.
        body_idle_seconds: How long a client may send nothing of its request's body.
        stall_seconds: How long a client may read nothing while we have something for it.
        of_request: How much it may ask for.
        tenant_header: Lower-case name of the header that names the tenant; empty if all are one.
    """

    max_body_bytes: int
    body_idle_seconds: float
    stall_seconds: float
    of_request: RequestLimits
    tenant_header: str = ""


class Edge:
    """What all endpoints share."""

    def __init__(
        self,
        pipeline: Pipeline,
        metrics: Metrics,
        recent: RecentRequests,
        trace_headers: TraceHeaders,
        limits: EdgeLimits,
    ) -> None:
        self.pipeline = pipeline
        self.metrics = metrics
        self.recent = recent
        self.trace_headers = trace_headers
        self.limits = limits

    async def answer(
        self, scope: Scope, send: Send, api: str, work: Callable[[ClientSink, StageClock], Awaitable[None]]
    ) -> None:
        """Run one exchange; every error becomes an OpenAI error body or, in a stream, an error event."""
        sink = ClientSink(send, reset_of(scope))
        clock = StageClock(time.perf_counter)
        self.metrics.request_began()
        status = 500
        try:
            with clock.stage("total"):
                await work(sink, clock)
                await sink.finish()
            status = sink.status or 200
        except ClientGone:
            status = ClientGone.default_status
            sink.abandon()
            self.metrics.client_disconnected()
        except MotorError as error:
            status = error.status
            self.metrics.fault(error.domain, error.kind)
            _log.warning("request.failed", domain=error.domain, kind=error.kind, status=error.status)
            await _tell(sink, error)
        except asyncio.CancelledError:
            # Only the server cancels an exchange, when its grace time is over; the task ends here either way.
            status = 503
            await _tell(sink, MotorError(_SHUTDOWN, status=status, error_type="ServiceUnavailableError"))
        except Exception as error:  # noqa: BLE001 - the one catch-all: a bug ends one request, not the process
            _log.exception("request.crashed", error_type=type(error).__name__)
            await _tell(sink, MotorError("internal error"))
        finally:
            self.metrics.request_ended(api, sink.chain, status, clock)


async def _tell(sink: ClientSink, error: MotorError) -> None:
    payload = error_payload(error)
    if not sink.has_started and isinstance(error, RequestInvalid) and error.is_event:
        await sink.start(200, EVENT_STREAM_HEADERS)
    if not sink.has_started:
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(payload)).encode())]
        if error.status == 408:
            headers.append((b"connection", b"close"))  # the rest of the body may come at any time
        if isinstance(error, TooManyRequests):
            headers.append((b"retry-after", str(error.retry_after_seconds).encode()))
        await sink.start(error.status, headers)
        await sink.write(payload)
    elif sink.is_event_stream:
        await sink.write(encode_event(error_event_payload(error)) + DONE_EVENT)
    else:
        return  # a broken body must not look complete: leave it without its end, the server closes the connection
    await sink.finish()


class OpenAiEndpoint:
    """`POST /v1/chat/completions` and `POST /v1/completions`."""

    def __init__(self, edge: Edge, api: Api) -> None:
        self._edge = edge
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def work(sink: ClientSink, clock: StageClock) -> None:
            edge = self._edge
            body = await read_body(scope, receive, edge.limits.max_body_bytes, edge.limits.body_idle_seconds)
            client = parse_client_request(scope, self._api, body, edge.trace_headers, edge.limits.tenant_header)
            edge.limits.of_request.check(client)
            with bind_request(request_id=client.peer_id):
                serving = edge.pipeline.serve(Exchange(client, native_request(scope, body), sink, clock))
                try:
                    await serve_while_connected(serving, receive, sink, edge.limits.stall_seconds)
                finally:
                    edge.recent.remember(client.peer_id, clock)

        await self._edge.answer(scope, send, self._api, work)


class NativeEndpoint:
    """Other generating APIs, which engines serve by themselves."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def work(sink: ClientSink, clock: StageClock) -> None:
            edge = self._edge
            body = await read_body(scope, receive, edge.limits.max_body_bytes, edge.limits.body_idle_seconds)
            headers = edge.trace_headers(header(scope, b"traceparent"), header(scope, b"tracestate"))
            relaying = edge.pipeline.relay(native_request(scope, body), headers, sink, clock)
            await serve_while_connected(relaying, receive, sink, edge.limits.stall_seconds)

        await self._edge.answer(scope, send, "native", work)
