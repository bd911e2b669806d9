"""`motor up`: a whole local stack in the foreground."""

import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from motor.launch.child_state import NO_RESTART, RestartPolicy
from motor.launch.engine_environment import EngineEnvironment, EngineEnvironmentError, find_engine_environment
from motor.launch.foreground import run_in_foreground
from motor.launch.fork_server import ForkServer
from motor.launch.local_stack import StackOptions, plan_simulated_stack, plan_vllm_stack, stack_environment
from motor.launch.ports import is_free
from motor.launch.status_board import StatusBoard
from motor.launch.vllm_commands import HOST, ModelOptions


def up(
    *,
    model: Annotated[str, typer.Option(help="A model folder or a Hugging Face id.")],
    engines: Annotated[int, typer.Option(min=1, help="How many engines.")] = 1,
    host: Annotated[str, typer.Option(help="Where the Coordinator listens for clients.")] = HOST,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The Coordinator's port for clients.")] = 1025,
    management_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="The Coordinator's port for operators; PORT + 1 if not given.")
    ] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="The name that clients use; the folder's name or the id if not given.")
    ] = None,
    engine_venv: Annotated[
        Path | None, typer.Option(help="The environment with vLLM; $ENGINE_VENV or .engine/ if not given.")
    ] = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="Simulated sidecar and engines, no vLLM.")] = False,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, help="Context in tokens; the model's if not given.")
    ] = None,
    tool_call_parser: Annotated[str | None, typer.Option(help="vLLM's tool call parser for this model.")] = None,
    reasoning_parser: Annotated[str | None, typer.Option(help="vLLM's reasoning parser for this model.")] = None,
    dtype: Annotated[str, typer.Option(help="vLLM's data type of the weights.")] = "auto",
    kv_cache_memory: Annotated[str, typer.Option(help="KV cache of an engine, with the CPU build.")] = "512M",
    renderer_num_workers: Annotated[int, typer.Option(min=1, help="Worker threads of the sidecar.")] = 4,
    engine_flag: Annotated[
        list[str] | None, typer.Option(help="A further vLLM flag for each engine, as --engine-flag=--flag=value.")
    ] = None,
    fast_start: Annotated[
        bool, typer.Option(help="Import vLLM once and fork; with the CPU build on Linux only.")
    ] = True,
    restart: Annotated[bool, typer.Option(help="Start a sidecar or engine again when it dies.")] = True,
    keep_logs: Annotated[
        Path | None, typer.Option(help="Write configuration and logs into this folder and keep them.")
    ] = None,
) -> None:
    """Start a Render sidecar, engines and the Coordinator, and stop them all with Ctrl-C.

    Exits with 0 after Ctrl-C or SIGTERM, 1 if a process could not start or the Coordinator died, 2 for wrong options.
    """
    model_options = ModelOptions(
        model=str(Path(model).resolve()) if Path(model).is_dir() else model,
        served_model_name=served_model_name or _default_name(model),
        max_model_len=max_model_len,
        tool_call_parser=tool_call_parser,
        reasoning_parser=reasoning_parser,
        dtype=dtype,
        kv_cache_memory=kv_cache_memory,
    )
    environment = None if simulate else _environment(engine_venv)
    ports = (port, management_port or port + 1)
    _check(model_options, host, ports, simulate)
    options = StackOptions(
        model=model_options,
        num_engines=engines,
        host=host,
        port=ports[0],
        management_port=ports[1],
        run_directory=_run_directory(keep_logs),
        num_render_workers=renderer_num_workers,
        engine_flags=tuple(engine_flag or ()),
    )
    policy = RestartPolicy() if restart else NO_RESTART
    is_clean = _run(options, environment, fast_start, policy)
    if is_clean and keep_logs is None:
        shutil.rmtree(options.run_directory, ignore_errors=True)
    else:
        typer.echo(f"configuration and logs: {options.run_directory}", err=True)
    raise typer.Exit(0 if is_clean else 1)


def _run(options: StackOptions, environment: EngineEnvironment | None, fast_start: bool, policy: RestartPolicy) -> bool:
    fork_server = None
    if environment is None:
        plan = plan_simulated_stack(options)
    else:
        plan = plan_vllm_stack(options, environment)
        if fast_start and environment.is_cpu_build and sys.platform.startswith("linux"):
            log = options.run_directory / "fork-server.log"
            fork_server = ForkServer(environment.python, log, stack_environment(options, environment, os.environ))
    log_paths = {spec.name: spec.log_path for spec in (*plan.peers, plan.coordinator)}
    with StatusBoard(Console(), log_paths) as board:
        return asyncio.run(run_in_foreground(plan, fork_server, policy, board))


def _default_name(model: str) -> str:
    return Path(model).resolve().name if Path(model).is_dir() else model


def _environment(engine_venv: Path | None) -> EngineEnvironment:
    try:
        return find_engine_environment(engine_venv)
    except EngineEnvironmentError as error:
        raise _refusal(str(error)) from error


def _check(model: ModelOptions, host: str, ports: tuple[int, int], simulate: bool) -> None:
    looks_like_path = model.model.startswith((".", "/", "~"))
    if not model.is_local and (looks_like_path or simulate):
        needed = "the simulator needs a local model folder, and" if simulate else "the model folder"
        raise _refusal(f"{needed} {model.model} does not exist")
    for address, port in zip((host, HOST), ports, strict=True):
        if not is_free(address, port):
            raise _refusal(f"{address}:{port} is in use: choose another port with --port or --management-port")


def _run_directory(keep_logs: Path | None) -> Path:
    if keep_logs is None:
        return Path(tempfile.mkdtemp(prefix="motor-up-"))
    keep_logs.mkdir(parents=True, exist_ok=True)
    return keep_logs.resolve()


def _refusal(message: str) -> typer.Exit:
    typer.echo(message, err=True)
    return typer.Exit(2)
