"""`motor simulate`: an engine or a Render sidecar without vLLM and without hardware."""

import asyncio
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from motor.simulator import EngineSimulator, Fault, RenderSimulator

_DEFAULT_CONTEXT = 4096

app = typer.Typer(
    help="Run a simulated engine or Render sidecar that speaks vLLM's HTTP.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Host = Annotated[str, typer.Option(help="The address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for a free one.")]
ServedName = Annotated[str, typer.Option("--served-model-name", help="The model's name in requests.")]
MaxModelLen = Annotated[int | None, typer.Option(min=1, help="The context in tokens; the model folder's by default.")]
Version = Annotated[str, typer.Option("--vllm-version", help="What /version tells.")]
Faults = Annotated[
    list[str] | None,
    typer.Option("--fault", help="A fault, e.g. status=503,times=2 or die_after_chunks=3,leg=decode; repeatable."),
]


@app.command()
def engine(
    *,
    port: Port,
    host: Host = "127.0.0.1",
    model: Annotated[Path | None, typer.Option(help="A model folder, for text endpoints and EOS ids.")] = None,
    answers: Annotated[Path | None, typer.Option(help="An expected.json; needs --model.")] = None,
    served_model_name: ServedName = "sim",
    max_model_len: MaxModelLen = None,
    vllm_version: Version = "0.32.0",
    tokens_per_second: Annotated[float, typer.Option(min=0, help="One stream's speed; 0: no limit.")] = 0.0,
    tokens_per_chunk: Annotated[str, typer.Option(help="Ids an event carries, e.g. 1 or 1,3,2 in turn.")] = "1",
    first_token_delay: Annotated[float, typer.Option(min=0, help="Seconds to the first token.")] = 0.0,
    prefill_tokens_per_second: Annotated[float, typer.Option(min=0, help="Prefill speed; 0: no time.")] = 0.0,
    cache_blocks: Annotated[int, typer.Option(min=0, help="Blocks of the prefix cache; 0: off.")] = 0,
    block_size: Annotated[int, typer.Option(min=1, help="Tokens a KV block.")] = 16,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests that run at a time.")] = 256,
    tokens_only: Annotated[bool, typer.Option("--tokens-only", help="Behave as vLLM's --tokens-only.")] = False,
    fault: Faults = None,
) -> None:
    """Run a simulated engine until SIGTERM or SIGINT."""
    from motor.simulator import EngineSimulator, ModelFolder, ScriptedAnswers

    faults = _parse_faults(fault)
    try:
        folder = None if model is None else ModelFolder(model)
        if answers is not None and folder is None:
            raise typer.BadParameter("--answers needs --model")
        simulator = EngineSimulator(
            model=folder,
            script=None if answers is None or folder is None else ScriptedAnswers.from_expected(answers, folder),
            faults=faults,
            host=host,
            port=port,
            served_model_name=served_model_name,
            max_model_len=_context(max_model_len, folder.max_model_len if folder else None),
            version=vllm_version,
            tokens_per_second=tokens_per_second,
            tokens_per_chunk=tuple(int(size) for size in tokens_per_chunk.split(",")),
            first_token_delay_seconds=first_token_delay,
            prefill_tokens_per_second=prefill_tokens_per_second,
            cache_blocks=cache_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            is_tokens_only=tokens_only,
        )
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from error
    _run(simulator, "engine")


@app.command()
def render(
    *,
    port: Port,
    model: Annotated[Path, typer.Option(help="The model folder.")],
    host: Host = "127.0.0.1",
    served_model_name: ServedName = "sim",
    max_model_len: MaxModelLen = None,
    vllm_version: Version = "0.32.0",
    parsers: Annotated[bool, typer.Option(help="Split reasoning and tool calls.")] = True,
    delay: Annotated[float, typer.Option(min=0, help="Seconds that every call takes beside its work.")] = 0.0,
    fault: Faults = None,
) -> None:
    """Run a simulated Render sidecar until SIGTERM or SIGINT."""
    from motor.simulator import ModelFolder, RenderSimulator

    faults = _parse_faults(fault)
    try:
        folder = ModelFolder(model)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="--model") from error
    simulator = RenderSimulator(
        model=folder,
        faults=faults,
        host=host,
        port=port,
        served_model_name=served_model_name,
        max_model_len=_context(max_model_len, folder.max_model_len),
        version=vllm_version,
        has_parsers=parsers,
        delay_seconds=delay,
    )
    _run(simulator, "render")


def _context(asked: int | None, of_model: int | None) -> int:
    return asked or of_model or _DEFAULT_CONTEXT


def _parse_faults(texts: list[str] | None) -> "list[Fault]":
    from motor.simulator.faults import parse_fault

    try:
        return [parse_fault(text) for text in texts or ()]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--fault") from error


def _run(simulator: "EngineSimulator | RenderSimulator", kind: str) -> None:
    import uvloop

    try:
        uvloop.run(_serve(simulator, kind))
    except OSError as error:
        typer.echo(f"can't listen: {error}", err=True)
        raise typer.Exit(1) from error


async def _serve(simulator: "EngineSimulator | RenderSimulator", kind: str) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with simulator:
        print(f"motor simulate {kind}: {simulator.url}", flush=True)
        await stopped.wait()
