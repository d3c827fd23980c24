"""The application object, exit codes, errors and warnings, and options of many commands."""

from __future__ import annotations

import re
import sys
from importlib.metadata import version as installed_version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from dispatcher.cli.commands import CommandGroup
from dispatcher.cli.output import Terminal
from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    InvalidSettings,
    InvalidValue,
    MessageNotFound,
    NoPlace,
    TooLate,
    Unavailable,
)
from dispatcher.times import send_time

_EXIT_CODES: tuple[tuple[type[DispatcherError], int], ...] = (
    (InvalidValue, 2),
    (NoPlace, 3),
    (MessageNotFound, 4),
    (TooLate, 5),
    (IdempotencyConflict, 5),
    (Unavailable, 6),
)

_PARAMETERS_OF = {
    "until_at": ("to_at",),
    "idempotency_key": ("key",),
    "scopes": ("counts",),
    "id": ("message_ids", "message_id"),
    "body": ("body", "text"),
    "shards": ("shard",),
}
"""The parameters of commands for a field of an error, where their names differ."""


class OptionNames(TyperGroup):
    """A group of commands that records how the options of the command that runs are typed.

    Help shows no type for a flag, which takes no value.
    """

    def get_params(self, ctx: Any) -> Any:
        """Return the options of all commands."""
        return _flags_without_types(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _flags_without_types(command.get_params(ctx))
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name."""
        found = super().resolve_command(ctx, args)
        _options.clear()
        if found[1] is not None:
            _options.update({each.name: _typed(each) for each in found[1].params})
        return found


class _AllCommands(OptionNames, CommandGroup):
    """All commands."""


def _flags_without_types(parameters: list[Any]) -> list[Any]:
    for each in parameters:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return parameters


_options: dict[str, str] = {}
"""How the parameters of the running command are typed."""


def _typed(parameter: Any) -> str:
    is_option = parameter.opts[0].startswith("-")
    return str(parameter.opts[0] if is_option else parameter.metavar or parameter.name.upper())


def name_options(error: DispatcherError) -> None:
    """Make the text of an error name the option: ``--from`` instead of ``from_at``."""
    if not isinstance(error, InvalidValue) or isinstance(error, InvalidSettings):
        return
    if error.field == "columns":
        return  # columns of a file may have the names of parameters
    typed = dict(_options)
    for field, names in _PARAMETERS_OF.items():
        found = [typed[name] for name in names if name in typed]
        given = [each for each in found if any(word.startswith(each) for word in sys.argv)]
        if found:
            typed[field] = (given or found)[0]

    def worded(text: str) -> str:
        return re.sub(r"[a-z]+(?:_[a-z]+)+", lambda word: typed.get(word[0], word[0]), text)

    accepted = error.accepted
    if send_time.ACCEPTED in accepted:
        instant = "a time with an offset (2026-12-24T08:30+01:00)"
        if zone := typed.get("zone"):
            instant += f", or a local time (2026-12-24T08:30) together with {zone}"
        accepted = accepted.replace(send_time.ACCEPTED, instant)
    field, *rest = re.split(r"(?=[.\[])", error.field, maxsplit=1)
    said = f"{typed.get(field, field)}{''.join(rest)}: {worded(error.problem)}"
    error.args = (f"{said}; accepted: {worded(accepted)}",)


app = typer.Typer(
    name="dispatcher",
    cls=_AllCommands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    help=(
        "Scheduled messages: exact quotas at submit, exact limits at delivery, "
        "nothing accepted is lost.\n\n"
        "Exit codes: 0 done, 1 a step failed, 2 bad input, 3 refused by a quota, "
        "4 no such message, 5 too late or key in use, 6 a server is unavailable, "
        "130 interrupted."
    ),
)


AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(installed_version("dispatcher"))
        raise typer.Exit


@app.callback()
def _of_all(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    del version


def examples(*lines: str) -> str:
    """Return the end of a help text: example commands, one a line."""
    return "\n\n".join(["[bold]Examples[/]", *(f"  $ {line}" for line in lines)])


def exit_code(error: DispatcherError) -> int:
    """Return the exit code for an error."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


def confirm(question: str) -> None:
    """Ask; end the command unless the answer is yes. Raises InvalidValue without an answer."""
    try:
        typer.confirm(question, abort=True, err=True)
    except typer.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        typer.echo(err=True)  # the question has no line end
        problem = "not given, and standard input has no answer"
        raise InvalidValue("--yes", problem, "--yes, or y on standard input") from None


def say_warning(said: str) -> None:
    """Write a warning to standard error; the command continues."""
    _say("[bold yellow]warning:[/]", said)


def say_error(said: str | DispatcherError) -> None:
    """Write an error and its notes to standard error, in one sentence."""
    if isinstance(said, DispatcherError):
        name_options(said)
    text = "; ".join([str(said), *getattr(said, "__notes__", ())])
    _say("[bold red]error:[/]", text)


def _say(label: str, text: str) -> None:
    Terminal(stderr=True, highlight=False, soft_wrap=True).print(label, end=" ")
    Terminal(stderr=True, highlight=False, markup=False, soft_wrap=True).print(text)
