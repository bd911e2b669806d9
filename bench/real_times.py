"""Times through the Coordinator beside a native engine's, on real vLLM."""

from bench.figures import Report


async def measure_real_times(report: Report, command: str) -> None:
    report.miss(("ttft_ratio_vs_engine", "throughput_ratio_vs_engine"), "todo")
