"""Ports on loopback."""

import contextlib
import socket

from motor.launch.vllm_commands import HOST


def free_ports(count: int) -> list[int]:
    """Return distinct ports that were free a moment ago.

    vLLM takes no listening socket and reports no port, so that a number must be chosen for it.
    """
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen there now."""
    try:
        socket.create_server((host, port)).close()
    except OSError:
        return False
    return True
