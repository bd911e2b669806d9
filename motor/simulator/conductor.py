"""A KV conductor that speaks Mooncake's HTTP API and answers what it is told to."""

import asyncio
from typing import Any, Self

from aiohttp import web

from motor.simulator.answers import json_answer, read_json
from motor.simulator.server import SimulatorServer

DEFAULT_TENANT = "default"


class ConductorSimulator:
    """Mutable: everything.

    Attributes:
        matches: By `instance_id` the matched tokens of each rank; answered as far as they are registered.
        registrations: Bodies of `/register` by `instance_id` and rank, without those unregistered.
        queries: Bodies of `/query`, in order of arrival.
        status: What `/query` answers; not 200 is a fault.
        is_hanging: True leaves `/query` without an answer.
        body: Bytes that `/query` answers instead of matches.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self.matches: dict[str, dict[int, int]] = {}
        self.registrations: dict[tuple[str, int], dict[str, Any]] = {}
        self.queries: list[dict[str, Any]] = []
        self.status = 200
        self.is_hanging = False
        self.body: bytes | None = None
        self.server = SimulatorServer(host, port)
        self.server.add("POST", "/register", self._register)
        self.server.add("POST", "/unregister", self._unregister)
        self.server.add("POST", "/query", self._query)

    @property
    def url(self) -> str:
        """The address, without a trailing slash."""
        return self.server.url

    async def __aenter__(self) -> Self:
        """Start."""
        await self.server.start()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        """Stop."""
        await self.server.stop()

    async def _register(self, request: web.Request) -> web.Response:
        registration = await read_json(request)
        self.registrations[_key(registration)] = registration
        return json_answer({"status": "registered"})

    async def _unregister(self, request: web.Request) -> web.Response:
        is_known = self.registrations.pop(_key(await read_json(request)), None) is not None
        return json_answer({"status": "unregistered"} if is_known else {"error": "unknown"}, 200 if is_known else 404)

    async def _query(self, request: web.Request) -> web.Response:
        query = await read_json(request)
        self.queries.append(query)
        if self.is_hanging:
            await asyncio.Event().wait()
        if self.body is not None or self.status != 200:
            return web.Response(body=self.body or b"{}", status=self.status, content_type="application/json")
        known = {name for name, _ in self.registrations}
        found = {name: _answer(ranks) for name, ranks in self.matches.items() if name in known}
        return json_answer({query.get("tenant_id", DEFAULT_TENANT): found})


def _key(registration: dict[str, Any]) -> tuple[str, int]:
    return registration["instance_id"], registration["dp_rank"]


def _answer(ranks: dict[int, int]) -> dict[str, Any]:
    longest = max(ranks.values(), default=0)
    by_rank = {str(rank): matched for rank, matched in ranks.items()}
    return {"longest_matched": longest, "GPU": longest, "CPU": 0, "DISK": 0, "DP": by_rank}
