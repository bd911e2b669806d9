"""A real `vllm launch render` on loopback, and calls to it."""

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

MODEL_PATH = Path(__file__).parents[3] / "models" / "tiny-qwen3"
STANDARD_PATH = "/v1/chat/completions/derender"
LIVE_PATH = STANDARD_PATH + "/live"
CONTINUE_PATH = LIVE_PATH + "/continue"


@dataclass
class Sidecar:
    """A running sidecar; `lines` is what it has logged until it was ready."""

    process: subprocess.Popen[str]
    lines: list[str]
    connection: http.client.HTTPConnection = field(repr=False)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Status and JSON body of the answer."""
        headers = {"Content-Type": "application/json"}
        content = body if body is None or isinstance(body, str) else json.dumps(body)
        try:
            self.connection.request(method, path, content, headers)
        except ConnectionError:  # vLLM closes a connection that has been idle
            self.connection.close()
            self.connection.request(method, path, content, headers)
        response = self.connection.getresponse()
        return response.status, json.loads(response.read())

    def post(self, path: str, body: Any) -> Any:
        """JSON body of an answer that must be 200."""
        status, answer = self.call("POST", path, body)
        assert status == 200, answer
        return answer

    def cpu_seconds(self) -> float:
        """CPU time of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def running_sidecar(tool_parser: str, reasoning_parser: str, **environment: str) -> Iterator[Sidecar]:
    """Start a sidecar, wait until it serves, stop it at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = ["launch", "render", str(MODEL_PATH), "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--served-model-name", "tiny", "--max-model-len", "4096", "--disable-uvicorn-access-log"]
    arguments += [
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        tool_parser,
        "--reasoning-parser",
        reasoning_parser,
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "vllm.entrypoints.cli.main", *arguments],
        env=os.environ | {"VLLM_LOGGING_LEVEL": "INFO"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        lines = list(_lines_until(process.stdout, "Application startup complete"))
        drain = threading.Thread(target=process.stdout.read, daemon=True)
        drain.start()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        with contextlib.closing(connection):
            yield Sidecar(process, lines, connection)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _lines_until(output: IO[str], mark: str) -> Iterator[str]:
    lines = []
    for line in output:
        lines.append(line)
        yield line
        if mark in line:
            return
    raise RuntimeError("the sidecar has ended:\n" + "".join(lines[-20:]))
