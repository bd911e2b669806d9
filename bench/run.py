"""`python -m bench.run`: run groups of benchmarks, write `build/bench/figures.json`, print the same as a table."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from importlib import import_module

from rich.console import Console

from bench.figures import Report
from bench.processes import BUILD

GROUPS = {
    "overhead": "bench.overhead",
    "streaming": "bench.streaming",
    "parity": "bench.parity",
    "scheduling": "bench.scheduling",
    "relay": "bench.chaos",
}
"""Each group's module has `async def measure(report: Report) -> None`."""

Measure = Callable[[Report], Coroutine[None, None, None]]


def main() -> None:
    """Run the command."""
    names = _names(sys.argv[1:])
    report = Report()
    for name in names:
        measure: Measure = import_module(GROUPS[name]).measure
        asyncio.run(measure(report))
    report.write(BUILD / "figures.json")
    report.print(Console())


def _names(arguments: list[str]) -> list[str]:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description="Run benchmarks.")
    parser.add_argument("--only", metavar="GROUP[,GROUP]", help=f"Some of: {', '.join(GROUPS)}.")
    asked = parser.parse_args(arguments).only
    names = [name.strip() for name in asked.split(",")] if asked else list(GROUPS)
    unknown = [name for name in names if name not in GROUPS]
    if unknown:
        parser.error(f"unknown group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    return names


if __name__ == "__main__":
    main()
