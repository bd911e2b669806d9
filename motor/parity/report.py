"""The results of a run: totals, the report file and the table."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.table import Table
from rich.text import Text

from motor.parity.cases import Mode
from motor.parity.difference import Difference
from motor.parity.documented import Json

_SHOWN_VALUE_CHARS = 60


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What one case in one mode showed.

    Attributes:
        case: The case's name.
        mode: How it was sent.
        native_status: Native's HTTP status; 0 for a transport fault.
        our_status: The Coordinator's HTTP status; 0 for a transport fault.
        chain: Which chain of the Coordinator answered (`token`, `native`, or `""` if it doesn't say).
        num_native_events: The events of native's stream; 0 unless it is one.
        num_our_events: The events of the Coordinator's stream; 0 unless it is one.
        differences: Everything that differs, the documented differences included.
    """

    case: str
    mode: Mode
    native_status: int
    our_status: int
    chain: str
    num_native_events: int
    num_our_events: int
    differences: tuple[Difference, ...]

    @property
    def broken(self) -> list[Difference]:
        """The differences outside the documented list."""
        return [difference for difference in self.differences if difference.tolerance is None]

    @property
    def documented(self) -> list[Difference]:
        """The differences on the documented list."""
        return [difference for difference in self.differences if difference.tolerance is not None]

    @property
    def status(self) -> Literal["equal", "documented", "different"]:
        """`different` if parity is broken, `documented` if only documented differences were seen."""
        if self.broken:
            return "different"
        return "documented" if self.differences else "equal"


def count_differences(results: Sequence[CaseResult]) -> int:
    """Return how many differences outside the documented list all results have together."""
    return sum(len(result.broken) for result in results)


def report_document(results: Sequence[CaseResult], settings: dict[str, Json]) -> dict[str, Json]:
    """Return the report file's content: `settings`, the totals, and every result."""
    tolerated = Counter(str(entry.tolerance) for result in results for entry in result.documented)
    return {
        **settings,
        "parity_cases": len(results),
        "parity_differences": count_differences(results),
        "parity_different_cases": sum(result.status == "different" for result in results),
        "documented_differences": dict(sorted(tolerated.items())),
        "chains": dict(sorted(Counter(result.chain or "unnamed" for result in results).items())),
        "results": [_result_document(result) for result in results],
    }


def _result_document(result: CaseResult) -> Json:
    return {
        "case": result.case,
        "mode": str(result.mode),
        "status": result.status,
        "native_status": result.native_status,
        "our_status": result.our_status,
        "chain": result.chain,
        "num_native_events": result.num_native_events,
        "num_our_events": result.num_our_events,
        "differences": [_difference_document(difference) for difference in result.broken],
        "documented": [_difference_document(difference) for difference in result.documented],
    }


def _difference_document(difference: Difference) -> Json:
    document: dict[str, Json] = {"path": difference.path, "native": difference.native, "ours": difference.ours}
    if difference.tolerance is not None:
        document["tolerance"] = str(difference.tolerance)
    return document


def difference_table(results: Sequence[CaseResult]) -> Table:
    """Return one row per difference outside the documented list."""
    table = Table(title="Differences", title_justify="left", expand=True)
    for column in ("case", "mode", "field", "native", "ours"):
        table.add_column(column, overflow="fold")
    for result in results:
        for difference in result.broken:
            values = (difference.path, _cut(difference.native), _cut(difference.ours))
            table.add_row(*(Text(cell) for cell in (result.case, str(result.mode), *values)))
    return table


def theme_table(results: Sequence[CaseResult]) -> Table:
    """Return one row per theme and a row of totals: cases × modes by status."""
    table = Table(title="Parity", title_justify="left")
    table.add_column("theme")
    for column in ("cases × modes", "equal", "documented", "different"):
        table.add_column(column, justify="right")
    themes = dict.fromkeys(result.case.partition("/")[0] for result in results)
    for theme in themes:
        table.add_row(theme, *_counts([result for result in results if result.case.startswith(f"{theme}/")]))
    table.add_section()
    table.add_row("all", *_counts(results))
    return table


def tolerance_table(results: Sequence[CaseResult]) -> Table:
    """Return how often each entry of the documented list was needed, the system fingerprint in a row of its own."""
    table = Table(title="Documented differences", title_justify="left")
    table.add_column("entry")
    table.add_column("seen", justify="right")
    counted = Counter(str(entry.tolerance) for result in results for entry in result.documented)
    for entry, seen in sorted(counted.items()):
        table.add_row(entry, str(seen))
    return table


def _counts(results: Sequence[CaseResult]) -> list[str]:
    by_status = Counter(result.status for result in results)
    return [str(len(results)), *(str(by_status[status]) for status in ("equal", "documented", "different"))]


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_VALUE_CHARS else f"{text[:_SHOWN_VALUE_CHARS]}…"
