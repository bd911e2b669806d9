"""The native chain's wire: a client's HTTP exchange handed to an engine as it is, bytes in, bytes out."""

from collections.abc import Iterable
from dataclasses import dataclass

from motor.coordinator.domain.errors import EngineBroken, EngineTimeout, EngineUnreachable
from motor.coordinator.engine.token_engine_client import EngineTimeouts
from motor.coordinator.transport.faults import TransportFault, TransportFaultKind
from motor.coordinator.transport.http_pool import HttpPool, HttpStream
from motor.coordinator.wire.response_sink import ResponseSink

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
_NEVER_TO_ENGINES = (
    _HOP_BY_HOP
    | {b"host", b"content-length", b"authorization", b"expect", b"accept-encoding"}
    | {
        b"x-data-parallel-rank"  # dispatch is ours
    }
)
_NEVER_TO_CLIENTS = _HOP_BY_HOP | {b"server", b"date"}


@dataclass(frozen=True, slots=True)
class NativeRequest:
    """One request of any path that an engine serves itself.

    Attributes:
        method: HTTP method.
        target: Path and query as the client wrote them.
        headers: As they came.
        body: As it came.
    """

    method: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class OpenAiEngineClient:
    """Relays native exchanges; holds no state of its own."""

    def __init__(self, pool: HttpPool, timeouts: EngineTimeouts) -> None:
        self._pool = pool
        self._timeouts = timeouts

    async def relay(
        self,
        base_url: str,
        request: NativeRequest,
        request_headers: dict[str, str],
        sink: ResponseSink,
        extra_headers: Iterable[tuple[bytes, bytes]],
    ) -> int:
        """Send the request and copy the answer to the client as it arrives; return its status.

        Args:
            base_url: The engine.
            request: The client's request.
            request_headers: Headers that replace the client's own of the same name (trace, request id).
            sink: The client.
            extra_headers: Response headers of ours.

        Raises:
            EngineFault: The engine failed; if `sink.has_started`, in the middle of the answer.
        """
        headers = _engine_headers(request.headers) | request_headers
        try:
            async with self._pool.stream(
                request.method,
                base_url + request.target,
                body=request.body or None,
                headers=headers,
                head_seconds=self._timeouts.request_seconds,
            ) as http:
                await self._copy(http, sink, extra_headers)
                return http.status
        except TransportFault as fault:
            if fault.kind is TransportFaultKind.CONNECT:
                raise EngineUnreachable("the engine can't be reached") from fault
            if fault.kind is TransportFaultKind.TIMEOUT:
                raise EngineTimeout("the engine did not answer in time") from fault
            raise EngineBroken("the connection to the engine broke") from fault

    async def _copy(self, http: HttpStream, sink: ResponseSink, extra_headers: Iterable[tuple[bytes, bytes]]) -> None:
        packet = await http.read_some(self._timeouts.first_token_seconds)
        headers = [(name, value) for name, value in http.raw_headers if name.lower() not in _NEVER_TO_CLIENTS]
        await sink.start(http.status, [*headers, *extra_headers])
        while packet:
            await sink.write(packet)
            packet = await http.read_some(self._timeouts.inter_token_seconds)


def _engine_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """The client's headers that concern an engine; credentials and hop-by-hop headers don't."""
    kept: dict[str, str] = {}
    for name, value in headers:
        lowered = name.lower()
        if lowered not in _NEVER_TO_ENGINES:
            kept[lowered.decode("latin-1")] = value.decode("latin-1")
    return kept
