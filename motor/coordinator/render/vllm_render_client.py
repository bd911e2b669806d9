"""HTTP client of the vLLM Render sidecar: render, derender, health.

Source: vLLM 0.27.1 to 0.32, `/v1/{chat/completions,completions}/{render,derender}`. The sidecar keeps no session, so
any process behind `base_urls` may take any call; each call has its own timeout (RFC: `render_config.timeout_ms`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from motor.coordinator.domain.errors import (
    DerenderTimeout,
    DerenderUnavailable,
    RenderMalformed,
    RenderSuspended,
    RenderTimeout,
    RenderUnreachable,
)
from motor.coordinator.domain.request import Api, ClientRequest
from motor.coordinator.domain.version import Version
from motor.coordinator.render.availability import Availability
from motor.coordinator.render.models import DerenderChunkAnswer
from motor.coordinator.render.sidecar_answers import ROUTE_ABSENT, Answer, decoded, render_error
from motor.coordinator.telemetry.log import get_logger
from motor.coordinator.transport.faults import TransportFault, TransportFaultKind
from motor.coordinator.transport.http_pool import HttpPool, HttpResponse

RenderedRequest = dict[str, msgspec.Raw]
"""One GenerateRequest of Render, its members undecoded."""

_LIVE_PATH = "/v1/chat/completions/derender/live"
_SPILL = 4
"""How many more calls than the least busy process the one that knows a stream may have before it is passed by."""


class _LiveDescription(msgspec.Struct):
    version: int = 0


_JSON_HEADERS = {"Content-Type": "application/json"}
_log = get_logger(__name__)
_one_rendered = msgspec.json.Decoder(RenderedRequest)
_many_rendered = msgspec.json.Decoder(list[RenderedRequest])
_chunk_answer = msgspec.json.Decoder(DerenderChunkAnswer)
_complete_answer = msgspec.json.Decoder(dict[str, Any])


class VllmRenderClient:
    """Calls the sidecar; mutable: per process the outstanding calls, its availability, and its live parsers.

    Args:
        pool: The HTTP client.
        base_urls: The sidecar's processes.
        timeout_seconds: Limit of every single call.
        max_concurrent_calls: Of each process; further calls wait here, where they take turns.
    """

    def __init__(
        self, pool: HttpPool, base_urls: Sequence[str], timeout_seconds: float, max_concurrent_calls: int = 16
    ) -> None:
        self._pool = pool
        self._timeout_seconds = timeout_seconds
        self._outstanding = dict.fromkeys(base_urls, 0)
        self._places = {base_url: asyncio.Semaphore(max_concurrent_calls) for base_url in base_urls}
        self._live: set[str] = set()
        self._availability = Availability(base_urls)

    @property
    def num_outstanding(self) -> int:
        """Calls under way; zero when nothing leaks."""
        return sum(self._outstanding.values())

    async def render(self, client: ClientRequest) -> list[RenderedRequest]:
        """Turn the client's request, byte for byte as it came, into one GenerateRequest per prompt.

        Raises:
            RenderRejected: The sidecar judged the request; its error body is native vLLM's.
            RenderFault: No usable answer; the local tokenizer may step in.
        """
        available = self._availability.available
        if not available:
            raise RenderSuspended("Render has kept failing")
        base_url = min(available, key=self._outstanding.__getitem__)
        headers = {"X-Request-Id": client.peer_id, **client.forward_headers}
        if client.content_type is not None:
            headers["Content-Type"] = client.content_type
        try:
            answer = await self._post(client.api.path + "/render", client.body, headers, base_url)
        except TransportFault as fault:
            self._note(base_url, has_failed=True)
            if fault.kind is TransportFaultKind.TIMEOUT:
                raise RenderTimeout("Render did not answer in time") from fault
            raise RenderUnreachable("Render can't be reached") from fault
        self._note(base_url, has_failed=answer.status >= 500 and answer.status != 501)
        if answer.status != 200:
            raise render_error(answer, is_stream=client.is_stream)
        try:
            if client.api is Api.CHAT:
                return [_one_rendered.decode(answer.body)]
            return _many_rendered.decode(answer.body)
        except msgspec.DecodeError as error:
            raise RenderMalformed("Render's answer is not a GenerateRequest") from error

    async def probe_suspended(self, model: str) -> bool:
        """Let every suspended process do a tiny render; an answer brings it back. `/health` would always be 200.

        Args:
            model: A name that the sidecar knows the model by.

        Returns:
            False, to be asked again soon: a process may be suspended at any time, and without one this costs nothing.
        """
        body = msgspec.json.encode({"model": model, "prompt": "1", "max_tokens": 1})
        for base_url in self._availability.suspended:
            try:
                answer = await self._pool.request(
                    "POST",
                    base_url + Api.COMPLETIONS.path + "/render",
                    body=body,
                    headers=_JSON_HEADERS,
                    timeout_seconds=self._timeout_seconds,
                )
            except TransportFault:
                continue
            if answer.status < 500:
                self._note(base_url, has_failed=False)
        return False

    def _note(self, base_url: str, *, has_failed: bool) -> None:
        """Let a render's outcome count for the process's availability."""
        if has_failed and self._availability.failed(base_url):
            _log.warning("render.suspended", sidecar=base_url)
        elif not has_failed and self._availability.answered(base_url):
            _log.info("render.resumed", sidecar=base_url)

    async def derender_complete(
        self, api: Api, body: bytes, forward_headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Turn complete generate responses into an OpenAI response object (with vLLM's nulls).

        Raises:
            DerenderFault: The row of the fault table that applies.
        """
        return await self._derender(api, body, forward_headers, _complete_answer)

    async def derender_chunk(
        self, api: Api, body: bytes, forward_headers: Mapping[str, str] | None = None
    ) -> DerenderChunkAnswer:
        """Turn one generate chunk and the previous state into an OpenAI chunk and the next state.

        Raises:
            DerenderFault: As above; the previous state stays valid, the identical call may be repeated.
        """
        return await self._derender(api, body, forward_headers, _chunk_answer)

    def live_process(self, preferred: str | None) -> str | None:
        """Return the process that a parsed stream should call, if any keeps parsers alive.

        The one that knows the stream, unless it is busy and another isn't: that one replays once and knows it then.
        """
        if not self._live:
            return None
        least = min(self._live, key=self._outstanding.__getitem__)
        if preferred in self._live and self._outstanding[preferred] <= self._outstanding[least] + _SPILL:
            return preferred
        return least

    async def derender_live(
        self, base_url: str, body: bytes, forward_headers: Mapping[str, str], *, is_continuing: bool
    ) -> DerenderChunkAnswer | None:
        """Make a streamed chat derender call on one process that keeps parsers alive.

        Args:
            base_url: From `live_process`.
            body: Of `ChunkCallTemplate`.
            forward_headers: Headers for every peer.
            is_continuing: Whether the body names a continuation instead of carrying the history.

        Returns:
            The answer; `None` if the process doesn't know the continuation, or keeps no parsers any more: then the
            call must be made with the whole history.

        Raises:
            DerenderFault: As `derender_chunk`.
        """
        path = _LIVE_PATH + ("/continue" if is_continuing else "")
        answer = await self._derender_exchange(path, body, forward_headers, base_url)
        if answer.status == 409:
            return None
        if answer.status in ROUTE_ABSENT:
            self._live.discard(base_url)
            return None
        return decoded(answer, _chunk_answer)

    async def find_live_processes(self) -> None:
        """Ask every process whether it keeps parsers alive."""
        for base_url in self._outstanding:
            try:
                answer = await self._pool.request("GET", base_url + _LIVE_PATH, timeout_seconds=self._timeout_seconds)
                is_live = answer.status == 200 and msgspec.json.decode(answer.body, type=_LiveDescription).version == 1
            except (TransportFault, msgspec.DecodeError):
                is_live = False
            (self._live.add if is_live else self._live.discard)(base_url)

    async def version(self) -> Version | None:
        """Return the oldest version among the processes that answer; `None` if none does."""
        versions = []
        for base_url in self._outstanding:
            try:
                answer = await self._pool.request("GET", base_url + "/version", timeout_seconds=self._timeout_seconds)
                versions.append(Version.parse(msgspec.json.decode(answer.body, type=dict[str, str]).get("version", "")))
            except (TransportFault, msgspec.DecodeError):
                continue
        return min((version for version in versions if version is not None), default=None)

    async def chat_derender_status(self, body: bytes) -> int | None:
        """Return the HTTP status of a chat derender call; `None` if there is no answer."""
        try:
            answer = await self._post(Api.CHAT.path + "/derender", body, _JSON_HEADERS)
        except TransportFault:
            return None
        return answer.status

    async def is_healthy(self) -> bool:
        """Whether any process answers `GET /health`."""
        for base_url in self._outstanding:
            try:
                answer = await self._pool.request("GET", base_url + "/health", timeout_seconds=self._timeout_seconds)
            except TransportFault:
                continue
            if answer.status == 200:
                return True
        return False

    async def _derender(
        self, api: Api, body: bytes, forward_headers: Mapping[str, str] | None, decoder: "msgspec.json.Decoder[Answer]"
    ) -> Answer:
        return decoded(await self._derender_exchange(api.path + "/derender", body, forward_headers or {}), decoder)

    async def _derender_exchange(
        self, path: str, body: bytes, forward_headers: Mapping[str, str], base_url: str | None = None
    ) -> HttpResponse:
        try:
            return await self._post(path, body, {**_JSON_HEADERS, **forward_headers}, base_url)
        except TransportFault as fault:
            if fault.kind is TransportFaultKind.TIMEOUT:
                raise DerenderTimeout("Derender did not answer in time") from fault
            raise DerenderUnavailable("Derender can't be reached") from fault

    async def _post(
        self, path: str, body: bytes, headers: Mapping[str, str], base_url: str | None = None
    ) -> HttpResponse:
        """Make a call on a process, by default the least busy one that is available, when it has a free place.

        Places are given in the order of asking. A stream asks for one call at a time, so streams take turns.
        """
        base_url = base_url or min(self._availability.available or self._outstanding, key=self._outstanding.__getitem__)
        self._outstanding[base_url] += 1
        try:
            async with self._places[base_url]:
                return await self._pool.request(
                    "POST", base_url + path, body=body, headers=headers, timeout_seconds=self._timeout_seconds
                )
        finally:
            self._outstanding[base_url] -= 1
