"""Times through the Coordinator beside a native engine's, on real vLLM."""

import json
from statistics import median

from bench.figures import Figure, Report
from bench.load import Load, LoadResult, run_load
from bench.processes import MODEL_NAME, StartFault, coordinator
from bench.vllm_processes import ENGINE, LIVE, vllm_processes
from motor.launch.engine_environment import EngineEnvironmentError

NUM_TOKENS = 64
NUM_SINGLE = 40
NUM_TOGETHER = 64
CONCURRENCY = 16
NUM_ROUNDS = 5
PROMPT = "The quick brown fox jumps over the lazy dog. " * 20


async def measure_real_times(report: Report, command: str) -> None:
    """Measure `ttft_ratio_vs_engine` and `throughput_ratio_vs_engine`."""
    try:
        await _measure(report, command)
    except (StartFault, EngineEnvironmentError) as fault:
        report.miss(("ttft_ratio_vs_engine", "throughput_ratio_vs_engine"), str(fault))


async def _measure(report: Report, command: str) -> None:
    native_firsts: list[float] = []
    our_firsts: list[float] = []
    native_rates: list[float] = []
    our_rates: list[float] = []
    async with (
        vllm_processes((LIVE, ENGINE)) as servers,
        coordinator(servers[ENGINE].url, servers[LIVE].url, name="real") as ours,
    ):
        sides = ((servers[ENGINE].url, native_firsts, native_rates), (ours.url, our_firsts, our_rates))
        for url, _, _ in sides:
            await _load(url, CONCURRENCY, CONCURRENCY)
        for _ in range(NUM_ROUNDS):
            for url, firsts, rates in sides:
                firsts.append(median((await _load(url, NUM_SINGLE, 1)).first_byte_seconds) * 1000)
                together = await _load(url, NUM_TOGETHER, CONCURRENCY)
                rates.append(NUM_TOGETHER * NUM_TOKENS / together.elapsed_seconds)
    report.add("ttft_ratio_vs_engine", _ratio(our_firsts, native_firsts, "ms to the first event", command))
    report.add("throughput_ratio_vs_engine", _ratio(our_rates, native_rates, "tokens/s", command))


async def _load(url: str, num_requests: int, num_connections: int) -> LoadResult:
    body: dict[str, object] = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": PROMPT}],
        "stream": True,
        "temperature": 0,
    }
    body |= {"max_tokens": NUM_TOKENS, "ignore_eos": True}
    return await run_load(Load(url, "/v1/chat/completions", json.dumps(body).encode(), num_requests, num_connections))


def _ratio(ours: list[float], native: list[float], unit: str, command: str) -> Figure:
    note = f"{median(ours):.1f} {unit}, native {median(native):.1f}"
    samples = [one / other for one, other in zip(ours, native, strict=True)]
    return Figure(median(ours) / median(native), "ratio", samples, command, note)
