"""The fork server with a stand-in for vLLM: a package of that name whose command prints and serves as told."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from motor.launch.child_spec import ChildSpec
from motor.launch.child_state import NO_RESTART, ChildState
from motor.launch.fork_server import LOST_EXIT_CODE, FastStartUnavailableError, ForkServer
from motor.launch.supervisor import supervision
from tests.unit.launch.children import Watcher, is_alive, server_spec

PLATFORM = """
import os
class Platform:
    def is_cpu(self):
        return {is_cpu}
    @classmethod
    def check_and_update_config(cls, config):
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
current_platform = Platform()
"""
COMMAND = """
import os, sys
from vllm.platforms import current_platform
def main():
    current_platform.check_and_update_config(None)
    print("told", *sys.argv, os.environ["VLLM_WORKER_MULTIPROC_METHOD"], os.environ.get("OWN"), flush=True)
    if sys.argv[1] == "exit":
        sys.exit(int(sys.argv[2]))
    if sys.argv[1] == "raise":
        raise ValueError("bad flag")
    sys.argv = ["server", *sys.argv[1:]]
    exec(open(os.environ["SERVER"]).read(), {"__name__": "server"})
"""


def make_vllm(folder: Path, version: str = "0.32.0", is_cpu: bool = True) -> dict[str, str]:
    """Write the stand-in and return the environment in which it is found."""
    command = folder / "vllm" / "entrypoints" / "cli"
    command.mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_text(f"__version__ = {version!r}")
    (folder / "vllm" / "platforms.py").write_text(PLATFORM.format(is_cpu=is_cpu))
    (command / "main.py").write_text(COMMAND)
    server = folder / "server.py"
    server.write_text(server_spec(folder).program[2])
    return {"PYTHONPATH": str(folder), "SERVER": str(server)}


@contextlib.asynccontextmanager
async def fork_server(folder: Path, **vllm: object) -> AsyncIterator[ForkServer]:
    """Yield a fork server of the stand-in, not started."""
    server = ForkServer(Path(sys.executable), folder / "fork-server.log", make_vllm(folder, **vllm))  # type: ignore[arg-type]
    try:
        yield server
    finally:
        await server.close()


def command(folder: Path, *arguments: str) -> ChildSpec:
    """Return a child that runs the stand-in's command."""
    return replace(server_spec(folder), arguments=arguments, environment={"OWN": "mine"})


async def test_a_child_gets_its_arguments_environment_log_and_exit_code(tmp_path: Path) -> None:
    async with fork_server(tmp_path) as server:
        assert await server.start() == "0.32.0"
        process = await server.launch(command(tmp_path, "exit", "3"))
        assert await process.wait() == 3
    assert (tmp_path / "engine-1.log").read_text() == "told vllm exit 3 fork mine\n"


async def test_an_error_is_in_the_childs_log(tmp_path: Path) -> None:
    async with fork_server(tmp_path) as server:
        await server.start()
        assert await (await server.launch(command(tmp_path, "raise"))).wait() == 1
    assert (tmp_path / "engine-1.log").read_text().endswith("ValueError: bad flag\n")


async def test_forked_children_are_supervised_like_any_other(tmp_path: Path) -> None:
    watcher = Watcher()
    specs = [server_spec(tmp_path, name=name) for name in ("render", "engine-1")]
    async with fork_server(tmp_path) as server, supervision(watcher, NO_RESTART) as supervisor:
        assert await supervisor.start(specs, server) == ()
        pids = [record.pid or 0 for record in supervisor.records]
        assert all(os.getsid(pid) == pid for pid in pids)
        await supervisor.stop()
        assert [record.state for record in supervisor.records] == [ChildState.STOPPED] * 2
        assert [record.exit_code for record in supervisor.records] == [0, 0]
    assert watcher.deaths == []


async def test_children_end_with_the_fork_server_and_the_next_launch_starts_a_new_one(tmp_path: Path) -> None:
    async with fork_server(tmp_path) as server:
        await server.start()
        spec = server_spec(tmp_path)
        process = await server.launch(spec)
        lost = server.pid or 0
        os.kill(lost, signal.SIGKILL)
        assert await process.wait() == LOST_EXIT_CODE
        async with asyncio.timeout(10):
            while True:
                if not is_alive(process.pid):
                    break
                await asyncio.sleep(0.01)
        assert await (await server.launch(command(tmp_path, "exit", "0"))).wait() == 0
        assert server.pid != lost


@pytest.mark.parametrize(
    ("vllm", "reason"),
    [({"version": "0.99.1"}, "not one of the tested versions"), ({"is_cpu": False}, "not the CPU build")],
)
async def test_what_can_not_be_forked_is_refused(tmp_path: Path, vllm: dict[str, object], reason: str) -> None:
    async with fork_server(tmp_path, **vllm) as server:
        with pytest.raises(FastStartUnavailableError, match=reason):
            await server.start()


async def test_an_environment_without_vllm_is_refused(tmp_path: Path) -> None:
    server = ForkServer(Path(sys.executable), tmp_path / "fork-server.log", {})
    with pytest.raises(FastStartUnavailableError, match="can't be imported"):
        await server.start()
    await server.close()
