"""Group `streaming`: what parsed streams cost a real sidecar, how smooth and how fair they are, stalled readers."""

import asyncio
from statistics import quantiles

import aiohttp

from bench.figures import Figure, Report
from bench.parsed_answers import ParsedAnswer, ask, write_answers
from bench.processes import Server, StartFault, coordinator, simulated_engine
from bench.stalled_readers import measure_stalled_readers
from bench.vllm_processes import LIVE, STOCK, vllm_processes
from motor.launch.engine_environment import EngineEnvironmentError

COMMAND = "python -m bench.run --only streaming"
LONG, HALF, SHORT = 1600, 800, 400
NUM_STREAMS = 64
WARM_UP = 40
SIDECAR_FIGURES = (
    "derender_1600_cpu_s",
    "derender_1600_cpu_s_stock",
    "derender_growth_800_1600",
    "visible_gap_p95_ms",
    "fairness_ratio",
)


async def measure(report: Report) -> None:
    """Measure the whole group."""
    try:
        async with vllm_processes((LIVE, STOCK)) as sidecars:
            await _measure_cost(report, sidecars)
            await _measure_fairness(report, sidecars)
    except (StartFault, EngineEnvironmentError) as fault:
        report.miss(SIDECAR_FIGURES, str(fault))
    await measure_stalled_readers(report, COMMAND)


async def _measure_cost(report: Report, sidecars: dict[str, Server]) -> None:
    answers = write_answers((WARM_UP, SHORT, HALF, LONG))
    async with simulated_engine("--answers", str(answers), "--tokens-per-second", "50") as engine:
        live_long, live_half, live_gap = await _cost(engine, sidecars[LIVE])
        stock_long, stock_half, stock_gap = await _cost(engine, sidecars[STOCK])
    report.add("derender_1600_cpu_s", Figure(live_long, "s", [live_long], COMMAND))
    report.add("derender_1600_cpu_s_stock", Figure(stock_long, "s", [stock_long], COMMAND))
    note = f"{live_half:.2f} s for {HALF} tokens; without the plugin {stock_half:.2f} s"
    report.add("derender_growth_800_1600", Figure(live_long / live_half, "ratio", [], COMMAND, note))
    note = f"with the plugin {live_gap:.0f} ms, without {stock_gap:.0f} ms"
    report.add("visible_gap_p95_ms", Figure(max(live_gap, stock_gap), "ms", [live_gap, stock_gap], COMMAND, note))


async def _cost(engine: Server, sidecar: Server) -> tuple[float, float, float]:
    """Return the sidecar's CPU seconds for the long and the half stream, and the long one's 95th percentile gap in ms.

    Raises:
        AssertionError: A streamed answer is not what the complete one is.
    """
    async with coordinator(engine.url, sidecar.url, name=sidecar.name + "-coordinator") as serving:  # noqa: SIM117 - as long as the server runs
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600)) as http:
            await ask(http, serving.url, WARM_UP, is_stream=True)
            seconds: dict[int, float] = {}
            for length in (HALF, LONG):
                before = sidecar.cpu_seconds
                streamed = await ask(http, serving.url, length, is_stream=True)
                seconds[length] = sidecar.cpu_seconds - before
                complete = await ask(http, serving.url, length, is_stream=False)
                assert streamed.parts == complete.parts, f"streamed and complete answers of {length} tokens differ"
            assert all((streamed.calls, streamed.reasoning, streamed.content))
    return seconds[LONG], seconds[HALF], quantiles(streamed.gaps, n=20)[-1] * 1000


async def _measure_fairness(report: Report, sidecars: dict[str, Server]) -> None:
    answers = write_answers((WARM_UP, SHORT))
    ratios, notes = [], []
    async with simulated_engine("--answers", str(answers), "--tokens-per-second", "20") as engine:
        for name in (LIVE, STOCK):
            taken = sorted(answer.seconds for answer in await _together(engine, sidecars[name]))
            ratios.append(taken[-1] / taken[0])
            notes.append(f"{name} {taken[0]:.1f} to {taken[-1]:.1f} s")
    report.add("fairness_ratio", Figure(max(ratios), "ratio", ratios, COMMAND, ", ".join(notes)))


async def _together(engine: Server, sidecar: Server) -> list[ParsedAnswer]:
    async with coordinator(engine.url, sidecar.url, name=sidecar.name + "-coordinator") as serving:
        timeout, connector = aiohttp.ClientTimeout(total=600), aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
            await ask(http, serving.url, WARM_UP, is_stream=True)
            return await asyncio.gather(*(ask(http, serving.url, SHORT, is_stream=True) for _ in range(NUM_STREAMS)))
