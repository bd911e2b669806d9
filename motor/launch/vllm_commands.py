"""How vLLM is started: the flags and the environment of the Render sidecar and of engines, as plain tables."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from motor.launch.engine_environment import EngineEnvironment

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """What sidecar and engines must agree on.

    Attributes:
        model: A local folder or a Hugging Face id.
        max_model_len: Context in tokens; `None` is the model's own.
        dtype: Of the engine's weights; `auto` is the model's own (on a CPU bfloat16 for float32 models).
        kv_cache_memory: Bytes of KV cache with a unit, e.g. `512M`; used with the CPU build only.
        block_size: Tokens in a KV block; `None` is vLLM's choice, 128 on a CPU.
    """

    model: str
    served_model_name: str
    max_model_len: int | None = None
    tool_call_parser: str | None = None
    reasoning_parser: str | None = None
    dtype: str = "auto"
    kv_cache_memory: str = "512M"
    block_size: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether the model is a local folder."""
        return Path(self.model).is_dir()


def render_arguments(options: ModelOptions, port: int, num_workers: int) -> tuple[str, ...]:
    """Return the sidecar's arguments after `vllm`."""
    return (
        *("launch", "render", options.model),
        *_shared_flags(options, port),
        *_parser_flags(options),
        *("--renderer-num-workers", str(num_workers)),
    )


def engine_arguments(
    environment: EngineEnvironment,
    options: ModelOptions,
    port: int,
    *,
    tokens_only: bool = False,
    extra: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return an engine's arguments after `vllm`.

    Args:
        tokens_only: Without tokenizer and native API. Out-of-vocabulary ids then end the engine: only for closed tests.
        extra: Further flags, last, so that they win.
    """
    routes = ("--enable-scale-out",) if environment.has_scale_out_flag else ()
    return (
        *("serve", options.model),
        *_shared_flags(options, port),
        *("--dtype", options.dtype),
        *(("--block-size", str(options.block_size)) if options.block_size else ()),
        *("--enable-prompt-tokens-details",),
        *(("--tokens-only",) if tokens_only else (*routes, *_parser_flags(options))),
        *(_cpu_flags(options) if environment.is_cpu_build else ()),
        *extra,
    )


def _shared_flags(options: ModelOptions, port: int) -> tuple[str, ...]:
    return (
        *("--host", HOST),
        *("--port", str(port)),
        *("--served-model-name", options.served_model_name),
        *(("--max-model-len", str(options.max_model_len)) if options.max_model_len else ()),
        "--disable-uvicorn-access-log",
    )


def _parser_flags(options: ModelOptions) -> tuple[str, ...]:
    return (
        *(
            ("--enable-auto-tool-choice", "--tool-call-parser", options.tool_call_parser)
            if options.tool_call_parser
            else ()
        ),
        *(("--reasoning-parser", options.reasoning_parser) if options.reasoning_parser else ()),
    )


def _cpu_flags(options: ModelOptions) -> tuple[str, ...]:
    return (
        "--enforce-eager",  # compiling takes minutes and gains nothing on the small models that a CPU can serve
        *("--max-num-seqs", "16"),
        *("--kv-cache-memory-bytes", options.kv_cache_memory),
    )


def vllm_environment(
    environment: EngineEnvironment, options: ModelOptions, num_threads: int, own: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment that sidecar and engines get; what the user has set (`own`) wins.

    Args:
        num_threads: OpenMP threads of one process, on a CPU.
    """
    table = {
        "PYTHONUNBUFFERED": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_HOST_IP": HOST,  # else internal sockets listen on the machine's outer address
    }
    if options.is_local:
        table["HF_HUB_OFFLINE"] = "1"
    if environment.is_cpu_build:
        table |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the worker lives in the engine's process: saves one import
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(num_threads),
        }
    return {name: own.get(name, value) for name, value in table.items()}


def vllm_program(environment: EngineEnvironment) -> tuple[str, ...]:
    """Return what runs `vllm`; by interpreter, because a script's first line is wrong after a folder was moved."""
    return (str(environment.python), "-P", "-m", "vllm.entrypoints.cli.main")
