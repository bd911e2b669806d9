"""The yardstick: the Rust `vllm-router` of PyPI, in a virtual environment of its own."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.processes import BUILD, Server, StartFault, running
from motor.launch.ports import free_ports

REQUIREMENT = "vllm-router==0.1.17"
"""Pinned, so that figures of different days compare."""


async def install_router(folder: Path = BUILD / "venv") -> Path:
    """Install the router unless it is there; return its program.

    Raises:
        StartFault: It can't be installed.
    """
    program, stamp = folder / "bin" / "vllm-router", folder / f".{REQUIREMENT}"
    if stamp.exists() and program.exists():
        return program
    await _run(sys.executable, "-m", "venv", str(folder))
    await _run(str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", REQUIREMENT)
    stamp.touch()
    return program


async def _run(*command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate()
    if process.returncode:
        raise StartFault(f"{' '.join(command)}: {errors.decode(errors='replace')[-500:]}")


@asynccontextmanager
async def vllm_router(program: Path, engine_url: str) -> AsyncIterator[Server]:
    """Run the router in front of one engine, as silent as it goes."""
    port, prometheus_port = free_ports(2)
    command = [
        *(str(program), "--host", "127.0.0.1", "--port", str(port), "--worker-urls", engine_url),
        *("--policy", "round_robin", "--prometheus-port", str(prometheus_port), "--log-level", "warning"),
    ]
    async with running("vllm-router", command, port) as server:
        yield server
