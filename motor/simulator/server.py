"""An HTTP server that can be crashed and started again on the same port."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Self

from aiohttp import web

from motor.simulator.answers import RequestRejected, json_answer

Endpoint = Callable[[web.Request], Awaitable[web.StreamResponse]]

_MAX_BODY_BYTES = 256 * 1024 * 1024
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


def reset_connection(transport: asyncio.BaseTransport | None) -> None:
    """Close a connection with a TCP reset, as a killed process' kernel does."""
    if transport is None or transport.is_closing():
        return
    connection = transport.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    if isinstance(transport, asyncio.WriteTransport):
        transport.abort()


@web.middleware
async def _answer_errors(request: web.Request, handler: Endpoint) -> web.StreamResponse:
    try:
        return await handler(request)
    except RequestRejected as rejected:
        return json_answer(rejected.body, rejected.status)
    except web.HTTPException as error:
        if error.status in (404, 405):
            return json_answer({"detail": error.reason}, error.status)
        raise


class SimulatorServer:
    """An HTTP server; `port` is fixed once it has started, `is_listening` changes with crash and restart.

    Args:
        host: The address to listen on.
        port: The port; 0 for a free one.
        keep_alive_seconds: How long an idle connection is kept; vLLM's default is 5.
    """

    def __init__(self, host: str, port: int, keep_alive_seconds: float = 5.0) -> None:
        self.host = host
        self.port = port
        self.is_listening = False
        self._keep_alive_seconds = keep_alive_seconds
        self._application = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_answer_errors])
        self._runner: web.AppRunner | None = None
        self._site: web.SockSite | None = None

    @property
    def url(self) -> str:
        """The address, without a trailing slash."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def num_connections(self) -> int:
        """Open client connections, idle ones included."""
        server = None if self._runner is None else self._runner.server
        return 0 if server is None else len(server.connections)

    def add(self, method: str, path: str, endpoint: Endpoint) -> None:
        """Register an endpoint; before the start."""
        self._application.router.add_route(method, path, endpoint)

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: The address can't be used.
        """
        self._runner = web.AppRunner(
            self._application,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=self._keep_alive_seconds,
            shutdown_timeout=0.1,
        )
        await self._runner.setup()
        await self._listen()

    async def stop(self) -> None:
        """Stop listening, cancel what runs and close all connections."""
        self.is_listening = False
        if self._runner is not None:
            self._close_connections(with_reset=False)
            await self._runner.cleanup()
        self._runner = self._site = None

    async def crash(self) -> None:
        """Do as a killed process: stop listening and reset every open connection."""
        if self._site is not None:
            await self._site.stop()
        self._site = None
        self.is_listening = False
        self._close_connections(with_reset=True)

    async def restart(self) -> None:
        """Listen again on the same port after a crash."""
        if not self.is_listening:
            await self._listen()

    async def __aenter__(self) -> Self:
        """Start."""
        await self.start()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        """Stop."""
        await self.stop()

    async def _listen(self) -> None:
        if self._runner is None:
            raise RuntimeError("the simulator is not running")
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listener = socket.create_server((self.host, self.port), family=family, backlog=1024)
        self.port = listener.getsockname()[1]
        self._site = web.SockSite(self._runner, listener)
        await self._site.start()
        self.is_listening = True

    def _close_connections(self, *, with_reset: bool) -> None:
        server = None if self._runner is None else self._runner.server
        for connection in [] if server is None else list(server.connections):
            if with_reset:
                reset_connection(connection.transport)
            elif connection.transport is not None:
                connection.transport.close()
