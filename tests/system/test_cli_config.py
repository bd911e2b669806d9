"""`motor config`, as a process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

VALID = """
model: {served_model_name: tiny}
render_config: {enable: true}
instances: [{id: u0, role: union, url: "http://127.0.0.1:8000/"}]
"""


def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a clean environment."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MOTOR_")}
    return subprocess.run(
        [sys.executable, "-c", "from motor.cli.main import app; app()", "config", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**inherited, **environ},
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file that can be used."""
    path = tmp_path / "motor.yaml"
    path.write_text(VALID, encoding="utf-8")
    return path


def test_check_says_what_a_usable_file_comes_to(file: Path) -> None:
    done = run("check", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{file}: OK",
        "  model tiny",
        "  listens on 0.0.0.0:1025",
        "  render http://127.0.0.1:8100",
        "  deploy_mode union",
        "  instance u0 (union) http://127.0.0.1:8000",
    ]


def test_check_warns_of_a_file_without_instances(tmp_path: Path) -> None:
    path = tmp_path / "motor.yaml"
    path.write_text("model: {served_model_name: tiny}", encoding="utf-8")
    done = run("check", str(path))
    assert done.returncode == 0
    assert "no instances" in done.stdout


def test_check_lists_the_problems_of_file_and_environment_and_exits_with_1(tmp_path: Path) -> None:
    path = tmp_path / "motor.yaml"
    path.write_text("model: {}", encoding="utf-8")
    done = run("check", str(path), MOTOR_API__PORT="many")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        'MOTOR_API__PORT: api.port: value "many": expected a whole number',
        f"{path}: model.served_model_name: missing; it must be given",
    ]


def test_schema_describes_every_section() -> None:
    done = run("schema")
    assert done.returncode == 0, done.stderr
    schema = json.loads(done.stdout)
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["model"]
    assert {"api", "render_config", "instances"} <= schema["properties"].keys()
