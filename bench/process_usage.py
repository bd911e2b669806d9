"""What processes have used, from the kernel's accounting in `/proc`."""

import os
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process and all its descendants, dead ones included once they are reaped.

    Raises:
        ProcessLookupError: There is no such process.
    """
    ticks = sum(_ticks(member) for member in process_tree(pid))
    return ticks / _TICKS_PER_SECOND


def resident_kib(pid: int) -> float:
    """Return the resident memory of a process without its descendants, in KiB.

    Raises:
        ProcessLookupError: There is no such process.
    """
    try:
        pages = int((_PROC / str(pid) / "statm").read_text().split()[1])
    except FileNotFoundError as error:
        raise ProcessLookupError(f"no process {pid}") from error
    return pages * _PAGE_BYTES / 1024


def process_tree(pid: int) -> list[int]:
    """Return a process and its living descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            fields = _stat_fields(int(entry.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    members = [pid]
    for member in members:
        members.extend(children.get(member, ()))
    return members


def _ticks(pid: int) -> int:
    fields = _stat_fields(pid)
    if not fields:
        raise ProcessLookupError(f"no process {pid}")
    return sum(int(field) for field in fields[11:15])


def _stat_fields(pid: int) -> list[str]:
    """The fields of `/proc/PID/stat` after the name, which may hold anything; none if the process has ended."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return text.rpartition(")")[2].split()
