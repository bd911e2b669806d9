"""Files to load."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes a configuration file and returns its path."""

    def write(text: str | bytes, name: str = "motor.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write
