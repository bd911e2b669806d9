"""`python -m motor.cli`: the `motor` command where its script can't be relied on."""

from motor.cli.main import app

app()
