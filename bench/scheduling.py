"""Group `scheduling`: the embedded KV conductor."""

import asyncio

import msgspec

from bench.figures import Figure, Report
from bench.kv_query import measure_kv_query


async def measure(report: Report) -> None:
    """Measure what there are benchmarks for."""
    for name, fields in (await asyncio.to_thread(measure_kv_query)).items():
        report.add(name, msgspec.convert(fields, Figure))
    report.miss(
        ("decision_100k_p99_ms", "hit_rate_gap", "ttft_gain_vs_round_robin"), "there is no benchmark for it yet"
    )
