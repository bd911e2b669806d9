"""Figures: what a benchmark measured, beside the value that it should have."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Aim:
    """What a figure should be.

    Attributes:
        relation: `<=` or `>=`.
        bound: In the figure's unit.
    """

    relation: str
    bound: float

    def is_met(self, value: float) -> bool:
        """Return whether the value is within the bound."""
        return value <= self.bound if self.relation == "<=" else value >= self.bound

    def __str__(self) -> str:
        return f"{self.relation} {self.bound:g}"


AIMS = {
    "native_chunk_cpu_ratio": Aim("<=", 1.3),
    "token_chunk_cpu_ratio": Aim("<=", 3),
    "native_request_cpu_ratio": Aim("<=", 1.3),
    "ttft_ratio_vs_engine": Aim("<=", 1.05),
    "throughput_ratio_vs_engine": Aim(">=", 0.95),
    "derender_1600_cpu_s": Aim("<=", 3),
    "derender_1600_cpu_s_stock": Aim("<=", 12),
    "derender_growth_800_1600": Aim("<=", 2.3),
    "visible_gap_p95_ms": Aim("<=", 150),
    "fairness_ratio": Aim("<=", 1.5),
    "slow_reader_kib_per_stream": Aim("<=", 64),
    "decision_100k_p99_ms": Aim("<=", 2),
    "kv_events_per_s": Aim(">=", 200_000),
    "hit_rate_gap": Aim("<=", 0.03),
    "ttft_gain_vs_round_robin": Aim(">=", 2),
    "chaos_streams": Aim(">=", 1000),
    "chaos_lost": Aim("<=", 0),
    "chaos_duplicated": Aim("<=", 0),
    "chaos_leaked": Aim("<=", 0),
    "relay_gap_ms": Aim("<=", 50),
    "parity_cases": Aim(">=", 500),
    "parity_differences": Aim("<=", 0),
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number.

    Attributes:
        unit: `ratio`, `s`, `ms`, `KiB`, `1/s`, `share` or `count`.
        samples: What the value was made of, in the order of measuring.
        command: Makes this figure again.
        note: How to read it.
    """

    value: float
    unit: str
    samples: Sequence[float] = ()
    command: str = ""
    note: str = ""


@dataclass(slots=True)
class Report:
    """Figures and the reasons for absent ones; changed by `add` and `miss`."""

    figures: dict[str, Figure] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, figure: Figure) -> None:
        """Take a figure."""
        self.figures[name] = figure

    def miss(self, names: Sequence[str], reason: str) -> None:
        """Note figures that could not be measured; a figure that was is kept."""
        self.missing.update({name: reason for name in names if name not in self.figures})

    def write(self, path: Path) -> None:
        """Write the figures as JSON; those of an earlier run that this one hasn't measured stay out."""
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {name: asdict(figure) for name, figure in self.figures.items()}
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")

    def print(self, console: Console) -> None:
        """Print the same as a table."""
        table = Table("figure", "value", "unit", "aim", "", "samples", title="Figures")
        for name, figure in self.figures.items():
            aim = AIMS.get(name)
            verdict = "" if aim is None else "met" if aim.is_met(figure.value) else "not met"
            samples = " ".join(f"{sample:.3g}" for sample in figure.samples)
            table.add_row(name, f"{figure.value:.4g}", figure.unit, str(aim or ""), verdict, samples)
        console.print(table)
        for name, figure in self.figures.items():
            if figure.note:
                console.print(f"{name}: {figure.note}", highlight=False, markup=False)
        for name, reason in self.missing.items():
            console.print(f"{name}: not measured: {reason}", highlight=False, markup=False)
