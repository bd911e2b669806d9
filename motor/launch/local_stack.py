"""The plan of a local stack: which children, on which ports, and the Coordinator's configuration for them."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from motor.launch.child_spec import ChildSpec
from motor.launch.engine_environment import EngineEnvironment
from motor.launch.ports import free_ports
from motor.launch.vllm_commands import (
    HOST,
    ModelOptions,
    engine_arguments,
    render_arguments,
    vllm_environment,
    vllm_program,
)

MOTOR_PROGRAM = (sys.executable, "-P", "-m", "motor.cli")
PEER_READY_PATHS = ("/health", "/v1/models")


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What `motor up` was asked for.

    Attributes:
        host: Where the Coordinator listens for clients; everything else listens on loopback.
        run_directory: Takes the configuration and the logs; it must exist.
        engine_flags: Further vLLM flags for every engine.
    """

    model: ModelOptions
    num_engines: int
    host: str
    port: int
    management_port: int
    run_directory: Path
    num_render_workers: int = 4
    engine_flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StackPlan:
    """The children: peers start together, the Coordinator when they are ready."""

    peers: tuple[ChildSpec, ...]
    coordinator: ChildSpec


def plan_vllm_stack(options: StackOptions, environment: EngineEnvironment) -> StackPlan:
    """Return the plan of a stack of real vLLM processes."""
    model = options.model
    return _plan(
        options,
        vllm_program(environment),
        stack_environment(options, environment, os.environ),
        lambda port: render_arguments(model, port, options.num_render_workers),
        lambda port: engine_arguments(environment, model, port, extra=options.engine_flags),
    )


def plan_simulated_stack(options: StackOptions) -> StackPlan:
    """Return the plan of a stack whose sidecar and engines are simulators."""
    model = ("--model", options.model.model, "--served-model-name", options.model.served_model_name)
    known_answers = Path(options.model.model) / "expected.json"
    answers = ("--answers", str(known_answers)) if known_answers.is_file() else ()
    return _plan(
        options,
        MOTOR_PROGRAM,
        {},
        lambda port: ("simulate", "render", "--port", str(port), *model),
        lambda port: ("simulate", "engine", "--port", str(port), *model, *answers),
    )


def stack_environment(options: StackOptions, environment: EngineEnvironment, own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of all vLLM processes; the machine's processors are shared out among the engines."""
    num_threads = max(1, (os.cpu_count() or 1) // options.num_engines)
    return vllm_environment(environment, options.model, num_threads, own)


def coordinator_configuration(options: StackOptions, render_port: int, engine_ports: list[int]) -> dict[str, object]:
    """Return the Coordinator's configuration as a document for its file."""
    model: dict[str, object] = {"served_model_name": options.model.served_model_name}
    if options.model.is_local:
        model["path"] = options.model.model
    if options.model.max_model_len:
        model["max_model_len"] = options.model.max_model_len
    return {
        "model": model,
        "api": {"host": options.host, "port": options.port},
        "management": {"host": HOST, "port": options.management_port},
        "deploy_mode": "union",
        "render_config": {
            "enable": True,
            "image_name": "",
            "endpoint": {"host": HOST, "port": render_port},
            "timeout_ms": 5000,
            "renderer_num_workers": options.num_render_workers,
        },
        "instances": [
            {"id": f"engine-{number}", "role": "union", "url": f"http://{HOST}:{port}"}
            for number, port in enumerate(engine_ports, start=1)
        ],
    }


def _plan(
    options: StackOptions,
    program: tuple[str, ...],
    environment: Mapping[str, str],
    arguments_of_render: Callable[[int], tuple[str, ...]],
    arguments_of_engine: Callable[[int], tuple[str, ...]],
) -> StackPlan:
    def peer(name: str, port: int, arguments: tuple[str, ...]) -> ChildSpec:
        return ChildSpec(
            name=name,
            program=program,
            arguments=arguments,
            log_path=options.run_directory / f"{name}.log",
            url=f"http://{HOST}:{port}",
            ready_paths=PEER_READY_PATHS,
            environment=environment,
            ready_timeout_seconds=3600.0,  # a model may have to be downloaded first
        )

    render_port, *engine_ports = free_ports(1 + options.num_engines)
    engines = [
        peer(f"engine-{number}", port, arguments_of_engine(port)) for number, port in enumerate(engine_ports, start=1)
    ]
    peers = (peer("render", render_port, arguments_of_render(render_port)), *engines)
    return StackPlan(peers, _coordinator(options, render_port, engine_ports))


def _coordinator(options: StackOptions, render_port: int, engine_ports: list[int]) -> ChildSpec:
    file = options.run_directory / "coordinator.yaml"
    document = coordinator_configuration(options, render_port, engine_ports)
    file.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    reachable = HOST if options.host in ("0.0.0.0", "::") else options.host
    return ChildSpec(
        name="coordinator",
        program=MOTOR_PROGRAM,
        arguments=("serve", "--config", str(file)),
        log_path=options.run_directory / "coordinator.log",
        url=f"http://{f'[{reachable}]' if ':' in reachable else reachable}:{options.port}",
        ready_paths=("/health", "/ready"),
        ready_timeout_seconds=60.0,
        stop_timeout_seconds=35.0,  # a little more than the grace that running requests have
        is_vital=True,
    )
