"""Group `parity`: the corpus of `motor parity`, Coordinator beside native vLLM, all of it real."""

from bench.figures import Figure, Report
from bench.processes import MODEL_NAME, StartFault, coordinator
from bench.vllm_processes import ENGINE, STOCK, vllm_processes
from motor.launch.engine_environment import EngineEnvironmentError
from motor.parity.corpus import BUILT_IN_CORPUS, load_corpus
from motor.parity.report import count_differences
from motor.parity.sender import Sender
from motor.parity.suite import run_suite

COMMAND = "python -m bench.run --only parity"
TIMEOUT_SECONDS = 120.0
NUM_CONCURRENT = 4


async def measure(report: Report) -> None:
    """Measure the whole group."""
    try:
        await _measure(report)
    except (StartFault, EngineEnvironmentError) as fault:
        report.miss(("parity_cases", "parity_differences"), str(fault))


async def _measure(report: Report) -> None:
    cases = load_corpus(BUILT_IN_CORPUS)
    async with (
        vllm_processes((STOCK, ENGINE)) as servers,
        coordinator(servers[ENGINE].url, servers[STOCK].url, name="parity") as ours,
        Sender(ours.url, TIMEOUT_SECONDS) as our_sender,
        Sender(servers[ENGINE].url, TIMEOUT_SECONDS) as native_sender,
    ):
        results = await run_suite(cases, our_sender, native_sender, model=MODEL_NAME, num_concurrent=NUM_CONCURRENT)
    differing = sorted({result.case for result in results if result.broken})
    note = f"differing cases: {', '.join(differing)}" if differing else ""
    report.add("parity_cases", Figure(len(results), "count", [], COMMAND))
    report.add("parity_differences", Figure(count_differences(results), "count", [], COMMAND, note))
