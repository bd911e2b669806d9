"""`motor config`: look at a configuration without running it."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from motor.coordinator.config import Settings
from motor.coordinator.config_file import ConfigError, load_settings

app = typer.Typer(name="config", help="Check a configuration file, or print the schema.", no_args_is_help=True)


@app.command()
def check(file: Annotated[Path, typer.Argument(help="The configuration file, YAML or JSON.")]) -> None:
    """Say whether `motor serve` would take this file, in this environment; exit with 1 if not."""
    try:
        settings = load_settings(file, os.environ)
    except ConfigError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(1) from error
    typer.echo(f"{file}: OK")
    for line in summary(settings):
        typer.echo(f"  {line}")


@app.command()
def schema() -> None:
    """Print the JSON schema of the configuration."""
    typer.echo(json.dumps(Settings.model_json_schema(), indent=2))


def summary(settings: Settings) -> list[str]:
    """Return what the configuration comes to, a line each."""
    names = ", ".join(settings.model.served_model_name)
    render = ", ".join(settings.render_config.base_urls) if settings.render_config.enable else "off"
    lines = [
        f"model {names}",
        f"listens on {settings.api.host}:{settings.api.port}",
        f"render {render}",
        f"deploy_mode {settings.deploy_mode}",
    ]
    lines += [f"instance {instance.id} ({instance.role}) {instance.url}" for instance in settings.instances]
    return lines if settings.instances else [*lines, "no instances: every request would be answered with 503"]
