"""``dispatcher version``."""

from __future__ import annotations

from importlib.metadata import version as installed_version

import typer

from dispatcher.cli import output
from dispatcher.cli.app import AsJson, examples


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command(epilog=examples("dispatcher version"))(version)


def version(as_json: AsJson = False) -> None:
    """Print the version."""
    number = installed_version("dispatcher")
    if as_json:
        output.as_json({"version": number})
    else:
        output.out.print(number)
