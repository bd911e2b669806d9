"""Supervision of real processes."""

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from motor.launch.child_state import NO_RESTART, ChildRecord, ChildState, RestartPolicy
from motor.launch.subprocess_launcher import SubprocessLauncher
from motor.launch.supervisor import supervision
from tests.unit.launch.children import Watcher, is_alive, server_spec

QUICK_RESTART = RestartPolicy(first_delay_seconds=0.01)


async def crash(url: str) -> None:
    """Make the server crash."""
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.get(f"{url}/crash")


async def test_children_become_ready_and_are_stopped(tmp_path: Path) -> None:
    watcher = Watcher()
    specs = [server_spec(tmp_path, name=name) for name in ("engine-1", "engine-2")]
    async with supervision(watcher, NO_RESTART) as supervisor:
        assert await supervisor.start(specs, SubprocessLauncher()) == ()
        pids = [record.pid for record in supervisor.records]
        assert all(pid and is_alive(pid) for pid in pids)
        assert all(os.getsid(pid) == pid for pid in pids if pid)
    assert not any(is_alive(pid) for pid in pids if pid)
    for name in ("engine-1", "engine-2"):
        assert watcher.states_of(name) == [
            ChildState.STARTING,
            ChildState.READY,
            ChildState.STOPPING,
            ChildState.STOPPED,
        ]
    assert watcher.deaths == []


async def test_a_child_that_ends_while_starting_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    watcher = Watcher()
    specs = [server_spec(tmp_path, "broken"), server_spec(tmp_path, "unready", name="engine-2")]
    async with supervision(watcher, QUICK_RESTART) as supervisor:
        (down,) = await supervisor.start(specs, SubprocessLauncher())
        assert (down.name, down.state, down.exit_code) == ("engine-1", ChildState.EXITED, 1)
    assert watcher.deaths == [
        ("engine-1", "exited with code 1", ["server of mode broken starts", "no such model"]),
    ]


async def test_a_program_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    watcher = Watcher()
    spec = server_spec(tmp_path, program=(str(tmp_path / "nothing"),))
    async with supervision(watcher, QUICK_RESTART) as supervisor:
        (down,) = await supervisor.start([spec], SubprocessLauncher())
    assert down.state is ChildState.EXITED
    ((name, reason, _),) = watcher.deaths
    assert name == "engine-1"
    assert "can't be started" in reason
    assert "nothing" in reason


async def test_a_child_that_dies_later_starts_again(tmp_path: Path) -> None:
    is_back = asyncio.Event()

    def note_return(record: ChildRecord) -> None:
        if record.state is ChildState.READY and record.num_failures:
            is_back.set()

    watcher = Watcher(on_change=note_return)
    spec = server_spec(tmp_path)
    async with supervision(watcher, QUICK_RESTART) as supervisor:
        await supervisor.start([spec], SubprocessLauncher())
        await crash(spec.url)
        await is_back.wait()
        assert supervisor.records[0].state is ChildState.READY
    ((_, reason, log_end),) = watcher.deaths
    assert reason == "exited with code 7"
    assert log_end[-1] == "out of memory"
    assert ChildState.RESTARTING in watcher.states_of("engine-1")


async def test_without_restart_a_dead_child_stays_down(tmp_path: Path) -> None:
    is_down = asyncio.Event()
    watcher = Watcher(on_change=lambda record: is_down.set() if record.state is ChildState.EXITED else None)
    spec = server_spec(tmp_path)
    async with supervision(watcher, NO_RESTART) as supervisor:
        await supervisor.start([spec], SubprocessLauncher())
        os.kill(supervisor.records[0].pid or 0, signal.SIGKILL)
        await is_down.wait()
    assert watcher.states_of("engine-1")[-1] is ChildState.EXITED
    assert watcher.deaths[0][1] == "ended by SIGKILL"


async def test_the_end_of_a_vital_child_ends_the_stack(tmp_path: Path) -> None:
    spec = replace(server_spec(tmp_path, name="coordinator"), is_vital=True)
    async with supervision(Watcher(), QUICK_RESTART) as supervisor:
        await supervisor.start([spec], SubprocessLauncher())
        await crash(spec.url)
        await supervisor.ended()
        assert supervisor.records[0].state is ChildState.EXITED


async def test_a_child_that_ignores_the_request_to_stop_is_killed(tmp_path: Path) -> None:
    watcher = Watcher()
    async with supervision(watcher, NO_RESTART) as supervisor:
        await supervisor.start([server_spec(tmp_path, "stubborn", stop_timeout_seconds=0.1)], SubprocessLauncher())
        pid = supervisor.records[0].pid or 0
    assert not is_alive(pid)
    assert supervisor.records[0].exit_code == -signal.SIGKILL
    assert watcher.deaths == []


async def test_what_a_dead_child_left_behind_is_killed(tmp_path: Path) -> None:
    spec = server_spec(tmp_path, "parent")
    async with supervision(Watcher(), NO_RESTART) as supervisor:
        await supervisor.start([spec], SubprocessLauncher())
        worker = int((tmp_path / "note").read_text())
        assert is_alive(worker)
    async with asyncio.timeout(5):
        while True:
            if not is_alive(worker):
                break
            await asyncio.sleep(0.01)


async def test_a_child_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    watcher = Watcher()
    spec = server_spec(tmp_path, "unready", ready_timeout_seconds=0.2)
    async with supervision(watcher, QUICK_RESTART) as supervisor:
        (down,) = await supervisor.start([spec], SubprocessLauncher())
    assert down.state is ChildState.EXITED
    assert watcher.deaths[0][1] == "not ready after 0 s"


async def test_cancellation_leaves_no_process(tmp_path: Path) -> None:
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def supervise() -> None:
        async with supervision(Watcher(), NO_RESTART) as supervisor:
            await supervisor.start([server_spec(tmp_path, "stubborn", stop_timeout_seconds=0.1)], SubprocessLauncher())
            started.set_result(supervisor.records[0].pid or 0)
            await supervisor.ended()

    running = asyncio.create_task(supervise())
    pid = await started
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_alive(pid)
