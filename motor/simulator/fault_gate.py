"""The faults that strike before an answer: refuse, hang, status."""

import asyncio

from aiohttp import web

from motor.simulator.answers import error_body, json_answer
from motor.simulator.faults import Fault, FaultKind, FaultSet, RequestFaults, fault_from_json
from motor.simulator.server import reset_connection

_ERROR_TYPES = {
    400: "BadRequestError",
    404: "NotFoundError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}


async def meet(request: web.Request, faults: RequestFaults) -> web.Response | None:
    """Let a request meet its early faults.

    Returns:
        The answer that the fault gives, or None to go on. A hanging request never returns; its client must leave.
    """
    if not faults.by_kind:
        return None
    if faults.get(FaultKind.REFUSE):
        reset_connection(request.transport)
        return web.Response()
    if faults.get(FaultKind.HANG):
        await asyncio.get_running_loop().create_future()
    status = faults.get(FaultKind.STATUS)
    return None if status is None else _error_answer(status)


def break_off_complete(request: web.Request, faults: RequestFaults, num_chunks: int) -> bool:
    """Close the connection instead of a complete answer, where a fault says so; tell whether it did."""
    died, ended = faults.get(FaultKind.DIE), faults.get(FaultKind.EOF)
    if died is not None and num_chunks >= died.after:
        reset_connection(request.transport)
        return True
    if ended is not None and num_chunks >= ended.after and request.transport is not None:
        request.transport.close()
        return True
    return False


def _error_answer(fault: Fault) -> web.Response:
    if fault.body is not None:
        return json_answer(fault.body, fault.status)
    error_type = _ERROR_TYPES.get(fault.status, "InternalServerError")
    return json_answer(error_body("Simulated fault", error_type, fault.status), fault.status)


class FaultEndpoints:
    """`/sim/faults`: GET lists, POST adds one fault or a list, DELETE clears.

    Args:
        faults: The faults in force.
    """

    def __init__(self, faults: FaultSet) -> None:
        self._faults = faults

    async def list(self, _request: web.Request) -> web.Response:
        """Answer all faults with their hits."""
        return json_answer({"faults": self._faults.describe()})

    async def add(self, request: web.Request) -> web.Response:
        """Put one fault or a list of them in force."""
        try:
            body = await request.json()
            for fault in [fault_from_json(item) for item in (body if isinstance(body, list) else [body])]:
                fields = {name: getattr(fault, name) for name in Fault.__slots__ if name not in ("kind", "num_hits")}
                self._faults.set(fault.kind, **fields)
        except ValueError as error:
            return json_answer(error_body(str(error), "BadRequestError", 400), 400)
        return await self.list(request)

    async def clear(self, request: web.Request) -> web.Response:
        """Remove all faults."""
        self._faults.clear()
        return await self.list(request)
