"""What the user of `motor up` sees: a live table on a terminal, a line per change elsewhere."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Table

from motor.launch.child_state import ChildRecord, ChildState
from motor.launch.log_tail import last_lines

COLOURS = {
    ChildState.WAITING: "dim",
    ChildState.STARTING: "yellow",
    ChildState.READY: "green",
    ChildState.EXITED: "bold red",
    ChildState.RESTARTING: "yellow",
    ChildState.STOPPING: "cyan",
    ChildState.STOPPED: "dim",
}


class StatusBoard:
    """Shows children; mutable: `_records`, `_note`.

    Args:
        log_paths: Of each child; the last line is shown while it starts, so that a download is seen to go on.
        clock: The monotonic seconds that the records carry.
    """

    def __init__(
        self, console: Console, log_paths: Mapping[str, Path], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console
        self._log_paths = log_paths
        self._clock = clock
        self._started = clock()
        self._records: dict[str, ChildRecord] = {}
        self._note = ""
        self._spinner = Spinner("dots")
        self._live = Live(
            console=console, get_renderable=self._table, refresh_per_second=4, transient=False, auto_refresh=True
        )

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def changed(self, record: ChildRecord) -> None:
        """Show a child's new state."""
        before = self._records.get(record.name)
        self._records[record.name] = record
        is_new_state = before is None or before.state is not record.state
        if is_new_state and not self._console.is_terminal:
            self._console.print(self._line(record), highlight=False, soft_wrap=True)

    def died(self, record: ChildRecord, reason: str, log_end: list[str]) -> None:
        """Report a death with the end of the child's log."""
        self._console.print(f"[bold red]{record.name} {escape(reason)}[/]", highlight=False, soft_wrap=True)
        for line in log_end:
            self._console.print(f"  {record.name} | {line}", highlight=False, markup=False, soft_wrap=True)

    def note(self, text: str) -> None:
        """Show what is going on."""
        self._note = text
        if not self._console.is_terminal:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def ready(self, records: tuple[ChildRecord, ...]) -> None:
        """Say that the last started child, the Coordinator, can be used."""
        seconds = self._clock() - self._started
        self.note(f"ready after {seconds:.1f} s: {records[-1].url}/v1   (Ctrl-C stops everything)")

    def _line(self, record: ChildRecord) -> str:
        pid = f"pid {record.pid}" if record.pid else ""
        seconds = record.since - self._started
        return f"{seconds:6.1f} s  {record.name:<12} {record.state:<10} {record.url}  {pid}".rstrip()

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, expand=False)
        for title in ("process", "state", "url", "pid", "seconds", ""):
            table.add_column(title, justify="right" if title in ("pid", "seconds") else "left", no_wrap=True)
        now = self._clock()
        for record in list(self._records.values()):
            table.add_row(
                record.name,
                f"[{COLOURS[record.state]}]{record.state}[/]",
                record.url,
                str(record.pid or ""),
                f"{now - record.since:.0f}",
                self._detail(record),
            )
        if self._note:
            is_busy = not self._records or any(
                record.state in (ChildState.STARTING, ChildState.STOPPING) for record in self._records.values()
            )
            self._spinner.update(text=escape(self._note))
            outer = Table.grid()
            outer.add_row(table)
            outer.add_row(self._spinner if is_busy else escape(self._note))
            return outer
        return table

    def _detail(self, record: ChildRecord) -> str:
        if record.state is not ChildState.STARTING:
            return ""
        return "[dim]" + escape("".join(last_lines(self._log_paths[record.name], 1))[-60:]) + "[/]"
