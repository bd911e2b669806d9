"""A whole stack in the foreground: start, signals, ends."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from motor.cli.main import app
from motor.launch.child_state import NO_RESTART, ChildRecord, ChildState
from motor.launch.foreground import run_in_foreground
from motor.launch.local_stack import StackPlan
from tests.unit.launch.children import Watcher, server_spec


def plan(folder: Path, peer_mode: str = "plain") -> StackPlan:
    """Return a plan of one peer and a Coordinator."""
    peer = server_spec(folder, peer_mode)
    return StackPlan((peer,), replace(server_spec(folder, name="coordinator"), is_vital=True))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_the_coordinator_first_and_everything_cleanly(
    tmp_path: Path, number: signal.Signals
) -> None:
    watcher = Watcher(on_ready=lambda records: os.kill(os.getpid(), number))
    assert await run_in_foreground(plan(tmp_path), None, NO_RESTART, watcher)
    assert watcher.states == [
        ("engine-1", ChildState.STARTING),
        ("engine-1", ChildState.READY),
        ("coordinator", ChildState.STARTING),
        ("coordinator", ChildState.READY),
        ("coordinator", ChildState.STOPPING),
        ("coordinator", ChildState.STOPPED),
        ("engine-1", ChildState.STOPPING),
        ("engine-1", ChildState.STOPPED),
    ]
    assert watcher.deaths == []
    assert watcher.notes == ["stopping"]


async def test_another_signal_while_stopping_changes_nothing(tmp_path: Path) -> None:
    def send_another(record: ChildRecord) -> None:
        if record.state is ChildState.STOPPING and record.name == "coordinator":
            os.kill(os.getpid(), signal.SIGTERM)

    watcher = Watcher(on_change=send_another, on_ready=lambda records: os.kill(os.getpid(), signal.SIGINT))
    assert await run_in_foreground(plan(tmp_path), None, NO_RESTART, watcher)
    assert watcher.notes == ["stopping"]
    assert watcher.states_of("engine-1")[-1] is ChildState.STOPPED


async def test_the_same_signal_again_kills(tmp_path: Path) -> None:
    def stop_twice(record: ChildRecord) -> None:
        if record.state is ChildState.STOPPING:
            os.kill(os.getpid(), signal.SIGINT)

    watcher = Watcher(on_change=stop_twice, on_ready=lambda records: os.kill(os.getpid(), signal.SIGINT))
    stubborn = replace(server_spec(tmp_path, "stubborn", name="coordinator"), stop_timeout_seconds=1000.0)
    planned = replace(plan(tmp_path), coordinator=stubborn)
    assert await run_in_foreground(planned, None, NO_RESTART, watcher)
    assert "killing every process" in watcher.notes
    assert watcher.states_of("coordinator")[-1] is ChildState.STOPPED


async def test_a_peer_that_can_not_start_ends_the_start(tmp_path: Path) -> None:
    watcher = Watcher()
    assert not await run_in_foreground(plan(tmp_path, "broken"), None, NO_RESTART, watcher)
    assert watcher.states_of("coordinator") == []
    assert watcher.deaths[0][2][-1] == "no such model"


async def test_the_death_of_the_coordinator_ends_the_stack(tmp_path: Path) -> None:
    def kill_coordinator(records: tuple[ChildRecord, ...]) -> None:
        os.kill(records[-1].pid or 0, signal.SIGKILL)

    watcher = Watcher(on_ready=kill_coordinator)
    assert not await run_in_foreground(plan(tmp_path), None, NO_RESTART, watcher)
    assert [death[:2] for death in watcher.deaths] == [("coordinator", "ended by SIGKILL")]
    assert watcher.states_of("engine-1")[-1] is ChildState.STOPPED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "./no/such/model", "--simulate"], "does not exist"),
        (["--model", "org/name", "--simulate"], "the simulator needs a local model folder"),
        (["--model", "org/name", "--engine-venv", "no-such-venv"], "make engine"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(app, ["up", *arguments])
    assert result.exit_code == 2
    assert message in result.output


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(app, ["up", "--simulate", "--model", str(tmp_path), "--port", str(port)])
    assert result.exit_code == 2
    assert f"127.0.0.1:{port} is in use" in result.output
