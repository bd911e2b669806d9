"""Group `overhead`: the Coordinator's own CPU beside `vllm-router`'s, and what it adds to a real engine's times."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

from bench.figures import Figure, Report
from bench.load import Load, run_load
from bench.processes import MODEL_NAME, Server, StartFault, coordinator, simulated_engine, simulated_render
from bench.real_times import measure_real_times
from bench.vllm_router import install_router, vllm_router

NUM_CHUNKS = 64
NUM_CONNECTIONS = 32
NUM_ROUNDS = 3
TOKENS_PER_SECOND = 50
"""Of each stream: an engine's pace, at which an event travels alone instead of sharing a packet with its neighbours."""

NUM_STREAMS = 160
NUM_REQUESTS = 3000
COMMAND = "python -m bench.run --only overhead"
CPU_FIGURES = ("native_chunk_cpu_ratio", "token_chunk_cpu_ratio", "native_request_cpu_ratio")


async def measure(report: Report) -> None:
    """Measure the whole group."""
    try:
        router = await install_router()
    except StartFault as fault:
        report.miss(CPU_FIGURES, str(fault))
    else:
        await _measure_streams(report, router)
        await _measure_requests(report, router)
    await measure_real_times(report, COMMAND)


async def _measure_streams(report: Report, router: Path) -> None:
    async with (
        simulated_engine("--tokens-per-second", str(TOKENS_PER_SECOND)) as engine,
        simulated_render() as render,
        vllm_router(router, engine.url) as yardstick,
        coordinator(engine.url, name="native") as native,
        coordinator(engine.url, render.url, name="token") as token,
    ):
        seconds = await _interleaved([yardstick, native, token], _stream_load, NUM_STREAMS)
    per_chunk = [[sample / (NUM_STREAMS * NUM_CHUNKS) for sample in samples] for samples in seconds]
    report.add("native_chunk_cpu_ratio", _ratio(per_chunk[1], per_chunk[0], "chunk"))
    report.add("token_chunk_cpu_ratio", _ratio(per_chunk[2], per_chunk[0], "chunk"))


async def _measure_requests(report: Report, router: Path) -> None:
    async with (
        simulated_engine() as engine,
        vllm_router(router, engine.url) as yardstick,
        coordinator(engine.url, name="native") as native,
    ):
        seconds = await _interleaved([yardstick, native], _request_load, NUM_REQUESTS)
    ours, theirs = ([sample / NUM_REQUESTS for sample in samples] for samples in (seconds[1], seconds[0]))
    report.add("native_request_cpu_ratio", _ratio(ours, theirs, "request"))


async def _interleaved(
    servers: Sequence[Server], load_of: Callable[[Server, int], Load], num_requests: int
) -> list[list[float]]:
    """Return the CPU seconds of each server's rounds; servers take turns, so that other work hits all alike."""
    samples: list[list[float]] = [[] for _ in servers]
    for server in servers:
        await run_load(load_of(server, NUM_CONNECTIONS))
    for _ in range(NUM_ROUNDS):
        for server, taken in zip(servers, samples, strict=True):
            before = server.cpu_seconds
            await run_load(load_of(server, num_requests))
            taken.append(server.cpu_seconds - before)
    return samples


def _stream_load(server: Server, num_requests: int) -> Load:
    body = _chat(stream=True, max_tokens=NUM_CHUNKS)
    return Load(server.url, "/v1/chat/completions", body, num_requests, NUM_CONNECTIONS)


def _request_load(server: Server, num_requests: int) -> Load:
    body = _chat(max_tokens=4)
    return Load(server.url, "/v1/chat/completions", body, num_requests, NUM_CONNECTIONS, ending=b'"usage"')


def _chat(**fields: object) -> bytes:
    messages = [{"role": "user", "content": "Tell me a story."}]
    return json.dumps({"model": MODEL_NAME, "messages": messages, "ignore_eos": True, **fields}).encode()


def _ratio(ours: Sequence[float], theirs: Sequence[float], what: str) -> Figure:
    note = f"{median(ours) * 1e6:.1f} us a {what}, vllm-router {median(theirs) * 1e6:.1f} us"
    samples = [one / other for one, other in zip(ours, theirs, strict=True)]
    return Figure(median(ours) / median(theirs), "ratio", samples, COMMAND, note)
