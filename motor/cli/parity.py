"""`motor parity`: does the Coordinator answer what native vLLM answers?"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from motor.parity.cases import Case, CorpusError
from motor.parity.corpus import BUILT_IN_CORPUS, load_corpus, select_cases
from motor.parity.report import (
    CaseResult,
    count_differences,
    difference_table,
    report_document,
    theme_table,
    tolerance_table,
)


def parity(
    *,
    coordinator: Annotated[str, typer.Option(help="The Coordinator's base URL.")],
    native: Annotated[str, typer.Option(help="The base URL of a native vLLM server with the same model and flags.")],
    corpus: Annotated[Path, typer.Option(help="A directory of corpus files.")] = BUILT_IN_CORPUS,
    model: Annotated[str, typer.Option(help="The served model name.")] = "tiny",
    report: Annotated[Path | None, typer.Option(help="Write every result to this file, as JSON.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Cases in flight at once.")] = 4,
    only: Annotated[str | None, typer.Option(help="A shell pattern of case names or tags.")] = None,
    timeout_seconds: Annotated[float, typer.Option(min=0.1, help="The time for one whole answer.")] = 120.0,
) -> None:
    """Send a corpus to the Coordinator and to native vLLM, stream and not, and compare the answers field by field.

    Exits with 0 if nothing differs outside the documented list, 1 if something does, 2 if the corpus can't be used.
    """
    try:
        cases = select_cases(load_corpus(corpus), only)
    except CorpusError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    if not cases:
        typer.echo(f"no case matches {only!r}", err=True)
        raise typer.Exit(2)
    results = asyncio.run(
        _run(
            cases,
            coordinator=coordinator,
            native=native,
            model=model,
            num_concurrent=concurrency,
            timeout_seconds=timeout_seconds,
        )
    )
    _print(results)
    if report is not None:
        document = report_document(results, {"coordinator": coordinator, "native": native, "model": model})
        report.write_text(json.dumps(document, ensure_ascii=False, indent=1), encoding="utf-8")
    if count_differences(results):
        raise typer.Exit(1)


async def _run(
    cases: Sequence[Case], *, coordinator: str, native: str, model: str, num_concurrent: int, timeout_seconds: float
) -> list[CaseResult]:
    from motor.parity.sender import Sender
    from motor.parity.suite import run_suite

    async with Sender(coordinator, timeout_seconds) as ours, Sender(native, timeout_seconds) as theirs:
        return await run_suite(cases, ours, theirs, model=model, num_concurrent=num_concurrent)


def _print(results: Sequence[CaseResult]) -> None:
    console = Console()
    if count_differences(results):
        console.print(difference_table(results))
    console.print(theme_table(results))
    console.print(tolerance_table(results))
    console.print(f"parity_cases={len(results)} parity_differences={count_differences(results)}")
