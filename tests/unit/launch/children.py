"""A small server that behaves as told, and an observer: what tests of supervision are made of."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from motor.launch.child_spec import ChildSpec
from motor.launch.child_state import ChildRecord, ChildState
from motor.launch.ports import free_ports

SERVER = """
import http.server, signal, subprocess, sys, time
port, mode, note = int(sys.argv[1]), sys.argv[2], sys.argv[3]
print("server of mode", mode, "starts", flush=True)
if mode == "broken":
    sys.exit("no such model")
if mode == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if mode == "parent":
    worker = subprocess.Popen(["sleep", "1000"])
    open(note, "w").write(str(worker.pid))
class Server(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/crash":
            print("out of memory", flush=True)
            import os; os._exit(7)
        self.send_response(503 if mode == "unready" else 200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", port), Server).serve_forever()
"""


def server_spec(folder: Path, mode: str = "plain", name: str = "engine-1", **changes: object) -> ChildSpec:
    """Return a child that runs the server in `mode`: plain, broken, stubborn, unready or parent."""
    (port,) = free_ports(1)
    settings: dict[str, object] = {
        "name": name,
        "program": (sys.executable, "-c", SERVER),
        "arguments": (str(port), mode, str(folder / "note")),
        "log_path": folder / f"{name}.log",
        "url": f"http://127.0.0.1:{port}",
        "stop_timeout_seconds": 10.0,
        **changes,
    }
    return ChildSpec(**settings)  # type: ignore[arg-type]


def is_alive(pid: int) -> bool:
    """Return whether the process runs; a zombie doesn't."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(") ")[2][0] != "Z"


@dataclass
class Watcher:
    """Remembers what it is told; mutable: all."""

    states: list[tuple[str, ChildState]] = field(default_factory=list)
    deaths: list[tuple[str, str, list[str]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    on_change: Callable[[ChildRecord], None] = lambda record: None
    on_ready: Callable[[tuple[ChildRecord, ...]], None] = lambda records: None

    def changed(self, record: ChildRecord) -> None:
        """Remember a new state."""
        if self.states_of(record.name)[-1:] != [record.state]:
            self.states.append((record.name, record.state))
        self.on_change(record)

    def died(self, record: ChildRecord, reason: str, log_end: list[str]) -> None:
        """Remember a death."""
        self.deaths.append((record.name, reason, log_end))

    def states_of(self, name: str) -> list[ChildState]:
        """Return the states of one child, in order."""
        return [state for child, state in self.states if child == name]

    def note(self, text: str) -> None:
        """Remember a note."""
        self.notes.append(text)

    def ready(self, records: tuple[ChildRecord, ...]) -> None:
        """Tell the test that everything is ready."""
        self.on_ready(records)
