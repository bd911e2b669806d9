"""`motor serve`: run the Coordinator."""

import os
from pathlib import Path
from typing import Annotated

import typer


def serve(
    config: Annotated[Path, typer.Option("--config", help="The configuration file, YAML or JSON.")],
) -> None:
    """Run the Coordinator until SIGTERM or SIGINT."""
    import uvloop

    from motor.coordinator import app
    from motor.coordinator.api.server import StartError
    from motor.coordinator.config_file import ConfigError, load_settings
    from motor.coordinator.telemetry.log import configure_logging

    try:
        settings = load_settings(config, os.environ)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
    configure_logging(settings.logging.level, settings.logging.format)
    try:
        uvloop.run(app.serve(settings))
    except StartError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from error
