"""Log lines, as a process writes them to standard error."""

import json
import subprocess
import sys

import pytest

from motor.coordinator.telemetry.log import CONTENT_KEYS, withhold_content

PROGRAM = """
import sys
from motor.coordinator.telemetry.log import bind_request, configure_logging, get_logger
log = get_logger("motor.test")
configure_logging(sys.argv[1], sys.argv[2])
with bind_request(request_id="r1", prompt_index=0, attempt=1):
    log.debug("render.began")
    log.info("render.done", prompt_tokens=7, text="secret words")
log.warning("outside")
"""


def lines_of(level: str, form: str) -> list[str]:
    """Return what a fresh process logs; it must print nothing."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, level, form], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    return done.stderr.splitlines()


def test_json_lines_carry_the_bound_values_and_no_content() -> None:
    done, outside = (json.loads(line) for line in lines_of("info", "json"))
    assert done.pop("timestamp").endswith("Z")
    assert done == {
        "event": "render.done",
        "level": "info",
        "module": "motor.test",
        "request_id": "r1",
        "prompt_index": 0,
        "attempt": 1,
        "prompt_tokens": 7,
        "text": "<withheld>",
    }
    assert "request_id" not in outside


@pytest.mark.parametrize(
    ("level", "events"),
    [("debug", ["render.began", "render.done", "outside"]), ("warning", ["outside"]), ("error", [])],
)
def test_the_level_is_the_least_severity(level: str, events: list[str]) -> None:
    assert [json.loads(line)["event"] for line in lines_of(level, "json")] == events


def test_console_lines_are_for_reading_and_withhold_too() -> None:
    line = lines_of("info", "console")[0]
    assert "render.done" in line
    assert "request_id=r1" in line
    assert "secret words" not in line


@pytest.mark.parametrize("key", sorted(CONTENT_KEYS))
def test_every_name_of_content_is_withheld(key: str) -> None:
    event = withhold_content(None, "info", {"event": "e", key: [1, 2], "prompt_tokens": 2})
    assert event == {"event": "e", key: "<withheld>", "prompt_tokens": 2}
