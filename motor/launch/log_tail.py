"""The end of a child's log, for reports."""

import os
import re
from pathlib import Path

TAIL_BYTES = 16 * 1024
_TERMINAL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def last_lines(log_path: Path, num_lines: int) -> list[str]:
    """Return up to `num_lines` non-empty lines from the end of a log, without colours; none if there is no log.

    Progress bars rewrite a line with carriage returns: only what stands there at last is kept.
    """
    try:
        with log_path.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - TAIL_BYTES))
            text = log.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = (_TERMINAL_SEQUENCE.sub("", line.rstrip("\r").rpartition("\r")[2]).rstrip() for line in text.split("\n"))
    return [line for line in lines if line][-num_lines:]
