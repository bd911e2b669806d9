"""Clients that open a stream and read nothing: what each of them holds of the Coordinator's memory."""

import asyncio
import json
import resource
import socket
from contextlib import ExitStack
from urllib.parse import urlsplit

from bench.figures import Figure, Report
from bench.load import Load, run_load
from bench.processes import MODEL_NAME, Server, coordinator, simulated_engine, simulated_render, until_quiet

NUM_READERS = 2000
READERS_AT_A_TIME = 50
RECEIVE_BYTES = 4096
"""Of a client's socket: what it doesn't read backs up to the Coordinator soon."""

ENGINE_FLAGS = ("--tokens-per-chunk", "256", "--max-model-len", "10000000", "--max-num-seqs", "8192")
RENDER_FLAGS = ("--max-model-len", "10000000", "--no-parsers")
PATIENT = {"client_stall_seconds": 3600}
BODY = {
    "model": MODEL_NAME,
    "messages": [{"role": "user", "content": "Tell me everything."}],
    "stream": True,
    "ignore_eos": True,
}


async def measure_stalled_readers(report: Report, command: str) -> None:
    """Measure `slow_reader_kib_per_stream`, on both chains; the worse one counts."""
    if not _has_files_for(3 * NUM_READERS):
        report.miss(("slow_reader_kib_per_stream",), "the limit of open files is too low")
        return
    samples = []
    async with simulated_engine(*ENGINE_FLAGS) as engine, simulated_render(*RENDER_FLAGS) as render:
        for render_url in (None, render.url):
            async with coordinator(engine.url, render_url, name="stalled", streaming=PATIENT) as serving:
                samples.append(await _kib_per_stream(serving))
    note = f"native chain {samples[0]:.1f} KiB, token chain {samples[1]:.1f} KiB"
    report.add("slow_reader_kib_per_stream", Figure(max(samples), "KiB", samples, command, note))


def _has_files_for(num_files: int) -> bool:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else max(soft, num_files)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    return max(soft, wanted) >= num_files


async def _kib_per_stream(serving: Server) -> float:
    body = json.dumps(BODY | {"max_tokens": 1024}).encode()
    await run_load(Load(serving.url, "/v1/chat/completions", body, 100, 20))
    await until_quiet(serving)
    baseline = serving.resident_kib
    with ExitStack() as sockets:
        for _ in range(NUM_READERS // READERS_AT_A_TIME):
            for _ in range(READERS_AT_A_TIME):
                sockets.enter_context(_stalled_reader(serving.url))
            await asyncio.sleep(0.05)  # the listener's queue is finite
        await until_quiet(serving, deadline_seconds=240.0)
        return (serving.resident_kib - baseline) / NUM_READERS


def _stalled_reader(url: str) -> socket.socket:
    address = urlsplit(url)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    client.connect((address.hostname, address.port))
    body = json.dumps(BODY | {"max_tokens": 1_000_000}).encode()
    client.sendall(Load(url, "/v1/chat/completions", body, 1, 1).message)
    return client
