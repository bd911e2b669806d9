"""Runs the ASGI applications, each on its own listener, in one process."""

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import uvicorn
from starlette.applications import Starlette

from motor.coordinator.api.connection import ResettableProtocol

Application: TypeAlias = Starlette


class StartError(Exception):
    """The Coordinator can't start; the message says why."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits in seconds: of idle client connections, and of requests after the end has been asked for."""

    keep_alive_seconds: int
    grace_seconds: int


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one.

    Raises:
        StartError: The address can't be used.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=2048, reuse_port=False)
    except OSError as error:
        raise StartError(f"can't listen on {host}:{port}: {error.strerror}") from error


async def run_applications(
    applications: Sequence[tuple[Application, socket.socket]], limits: ServerLimits, stop: asyncio.Event
) -> None:
    """Serve until `stop` is set, or a server ends by itself, then let requests finish within the grace time."""
    servers = [_server(application, limits) for application, _ in applications]
    async with asyncio.TaskGroup() as tasks:
        running = [
            tasks.create_task(server.serve([listener]))
            for server, (_, listener) in zip(servers, applications, strict=True)
        ]
        stopping = tasks.create_task(stop.wait())
        await asyncio.wait([stopping, *running], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for server in servers:
            server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn without its own signal handlers: several servers share one process, its owner handles the signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def _server(application: Application, limits: ServerLimits) -> _Server:
    return _Server(
        uvicorn.Config(
            application,
            loop="uvloop",
            http=ResettableProtocol,
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            server_header=False,
            timeout_keep_alive=limits.keep_alive_seconds,
            timeout_graceful_shutdown=limits.grace_seconds,
        )
    )
