"""`POST /inference/v1/generate` and the abort endpoint of a simulated engine."""

import uuid
from contextlib import aclosing

from aiohttp import web

from motor.simulator.answers import RequestRejected, error_body, internal_error, json_answer, read_json
from motor.simulator.engine_core import EngineCore, Generation
from motor.simulator.engine_streams import EventWriter, StreamBroken
from motor.simulator.fault_gate import break_off_complete, meet
from motor.simulator.faults import FaultKind, FaultSet
from motor.simulator.generate_events import EventEncoder, complete_answer
from motor.simulator.generate_request import decode_request

_DISABLED = error_body(
    "Scale-out endpoints are disabled. Start the server with --enable-scale-out.", "PermissionDeniedError", 403
)


class GenerateEndpoint:
    """The token-only endpoints.

    Args:
        core: The engine.
        faults: What goes wrong.
    """

    def __init__(self, core: EngineCore, faults: FaultSet) -> None:
        self._core = core
        self._faults = faults

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Answer a generate request, complete or as a stream."""
        core = self._core
        if not core.settings.is_scale_out:
            return json_answer(_DISABLED, 403)
        generation = await self._accept(request)
        early = await meet(request, generation.faults)
        if early is not None:
            return early
        core.check_before_engine(generation.request)
        if generation.request.stream:
            return await self._stream(request, generation)
        return await self._complete(request, generation)

    async def abort_requests(self, request: web.Request) -> web.Response:
        """End requests by their external ids."""
        self._core.statistics.requests["abort_requests"] += 1
        ids = (await read_json(request)).get("request_ids")
        if ids is None:
            raise RequestRejected("Missing 'request_ids' in request body", error_type="Bad Request")
        self._core.abort([ids] if isinstance(ids, str) else ids)
        return web.Response()

    async def _accept(self, request: web.Request) -> Generation:
        if request.content_type != "application/json":
            await read_json(request)
        body = decode_request(await request.read())
        self._core.statistics.requests["generate"] += 1
        self._core.statistics.legs[body.leg] += 1
        rank = request.headers.get("X-data-parallel-rank")
        if rank is not None:
            self._core.statistics.ranks[rank] += 1
        base_id = request.headers.get("X-Request-Id") or body.request_id or uuid.uuid4().hex
        return Generation(body, f"generate-tokens-{base_id}", self._faults.strike(body.leg, "generate"))

    async def _stream(self, request: web.Request, generation: Generation) -> web.StreamResponse:
        writer = EventWriter(request, generation.faults)
        encoder = EventEncoder(generation, has_details=self._core.settings.has_prompt_tokens_details)
        await writer.start()
        num_completion = 0
        try:
            async with aclosing(self._core.generate(generation)) as chunks:
                async for chunk in chunks:
                    await writer.write(encoder.chunk(chunk))
                    num_completion += len(chunk.ids)
            if generation.request.includes_usage:
                await writer.write(encoder.usage_event(num_completion))
            await writer.finish()
        except RequestRejected as rejected:
            await writer.fail(rejected.body)
        except StreamBroken:
            pass
        return writer.response

    async def _complete(self, request: web.Request, generation: Generation) -> web.StreamResponse:
        core = self._core
        async with aclosing(core.generate(generation)) as stream:
            chunks = [chunk async for chunk in stream]
        if break_off_complete(request, generation.faults, len(chunks)):
            return web.Response()
        if generation.faults.get(FaultKind.ERROR_EVENT):
            raise internal_error()
        if generation.faults.get(FaultKind.MALFORMED):
            return web.Response(body=b'{"request_id": ', content_type="application/json")
        answer = complete_answer(
            generation,
            chunks,
            model=core.settings.served_model_name,
            created=int(core.clock.unix_time()),
            has_details=core.settings.has_prompt_tokens_details,
        )
        if generation.faults.get(FaultKind.INVALID):
            answer["choices"] = []
        return json_answer(answer)
