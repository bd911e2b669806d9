"""The end of a log."""

from pathlib import Path

from motor.launch.log_tail import TAIL_BYTES, last_lines


def test_last_lines_without_colours_blank_lines_and_overwritten_progress(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"first\n\n\x1b[31msecond\x1b[0m\r\nload 10 %\rload 100 %\nlast")
    assert last_lines(log, 10) == ["first", "second", "load 100 %", "last"]
    assert last_lines(log, 2) == ["load 100 %", "last"]


def test_a_large_log_is_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * TAIL_BYTES + b"\nlast\xff\n")
    assert last_lines(log, 1) == ["last�"]


def test_no_log_has_no_lines(tmp_path: Path) -> None:
    assert last_lines(tmp_path / "log", 5) == []
