"""The `motor` command: one module per subcommand, registered here."""

import typer

from motor.cli import config, parity, serve, simulate, up

app = typer.Typer(
    name="motor",
    help="Motor Coordinator: the OpenAI-compatible coordinator of token-only vLLM serving.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.callback()
def motor() -> None:
    """Keep subcommands as subcommands, also while there is only one."""


app.command()(serve.serve)
app.command()(parity.parity)
app.command()(up.up)
app.add_typer(config.app)
app.add_typer(simulate.app, name="simulate")
