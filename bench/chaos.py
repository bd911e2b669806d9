"""Group `relay`: streams while engines fail."""

import asyncio

import msgspec

from bench import relay
from bench.figures import Figure, Report


async def measure(report: Report) -> None:
    """Measure the group, in a thread because the deployment under test runs a loop of its own."""
    for name, fields in (await asyncio.to_thread(relay.measure)).items():
        report.add(name, msgspec.convert(fields, Figure))
