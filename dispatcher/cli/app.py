"""The application: its commands, exit codes, errors and warnings."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import version as installed_version
from importlib.resources import files
from inspect import Parameter
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from dispatcher.cli import output
from dispatcher.cli.output import Terminal
from dispatcher.errors import (
    DispatcherError,
    IdempotencyConflict,
    InvalidSettings,
    InvalidValue,
    MessageNotFound,
    SlotRefused,
    TooLate,
    Unavailable,
)
from dispatcher.extras import DISTRIBUTION
from dispatcher.times import send_time

Function = TypeVar("Function", bound=Callable[..., None])

_EXIT_CODES: tuple[tuple[type[DispatcherError], int], ...] = (
    (InvalidValue, 2),
    (SlotRefused, 3),
    (MessageNotFound, 4),
    (TooLate, 5),
    (IdempotencyConflict, 5),
    (Unavailable, 6),
)

_PARAMETERS_OF = {
    "id": ("message_ids", "message_id"),
    "body": ("body", "text"),
    "shards": ("shard",),
}
"""The parameters of commands for a field of an error, where their names differ."""


COMMANDS = {
    name: (panel, module)
    for panel, module, names in (
        ("Run", "services", ("up", "worker", "beat", "migrate")),
        ("Run", "serve", ("serve", "keys")),
        ("Run", "app", ("version",)),
        ("Submit", "messages", ("submit", "next-slot")),
        ("Look", "messages", ("show",)),
        ("Look", "listing", ("list", "held", "export")),
        ("Change", "messages", ("update",)),
        ("Change", "changes", ("cancel", "reschedule", "retry", "release", "drop")),
        ("Change", "lists", ("suppress", "unsuppress", "erase", "pause", "resume")),
        ("Look", "lists", ("suppressed",)),
        ("Look", "status", ("status", "top", "load", "refusals")),
        ("Submit", "imports", ("import",)),
        ("Look", "timeline", ("timeline",)),
        ("Run", "doctor", ("windows",)),
        ("Look", "doctor", ("doctor",)),
        ("Run", "demo", ("demo",)),
    )
    for name in names
}
"""The panel of the help and the module of each command."""


@cache
def help_of(module: str) -> Mapping[str, str]:
    """Read the help of the commands of a module in its source.

    To import all modules takes a second, most of it for SQLAlchemy, Celery and Pydantic. A command
    has one decorator, whose ``name`` is a literal; ``help`` of a group comes last. Nothing
    is known of an installation that has compiled modules alone.
    """
    source = files(__package__).joinpath(f"{module}.py")
    said: dict[str, str] = {}
    if not source.is_file():
        return said
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name, decorator_list=[ast.Call(keywords=keywords)]):
                named = [ast.literal_eval(each.value) for each in keywords if each.arg == "name"]
                said[named[0] if named else name.replace("_", "-")] = ast.get_docstring(node) or ""
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Call(keywords=[*_, ast.keyword("help", ast.Constant(str(text)))]),
            ):
                said[name] = text
    return said


_UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""``UsageError`` of click, or of typer's copy of click: typer does not export it."""


@contextmanager
def _usage_errors_translated() -> Iterator[None]:
    """Raise InvalidValue for wrong arguments, which typer would print in a box.

    A call without arguments shows help.
    """
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        raise _invalid_value(error) from None


def _invalid_value(error: Any) -> InvalidValue:
    command = error.ctx.command_path if error.ctx is not None else "dispatcher"
    parameter, named = getattr(error, "param", None), getattr(error, "option_name", None)
    field = str(named or (parameter and _typed(parameter)) or command)
    text = str(error.message or error.format_message()).removeprefix("Value error, ")
    problem = f"{text[:1].lower()}{text[1:]}".rstrip(".")
    for again in (f": {field}", f" {field!r}"):
        problem = problem.removesuffix(again)
    given, is_choice, choices = problem.partition(" is not one of ")
    if is_choice:
        return InvalidValue(field, f"there is no {given}", f"one of {choices}")
    near = getattr(error, "possibilities", None)
    return InvalidValue(field, problem, ", ".join(near or [f"what `{command} --help` shows"]))


class OptionNames(TyperGroup):
    """A group of commands that records how the options of the command that runs are typed.

    Help shows no type for a flag, which takes no value.
    """

    def get_params(self, ctx: Any) -> Any:
        return _flags_without_types(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _flags_without_types(command.get_params(ctx))
            command.help = _unwrapped(command.help or "")
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        found = super().resolve_command(ctx, args)
        _options.clear()
        if found[1] is not None:
            _options.update({each.name: _typed(each) for each in found[1].params})
        return found


class AllCommands(OptionNames):
    """All commands. Their modules are imported when one of them runs or shows its own help."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name, (panel, _) in COMMANDS.items():
            self.commands[name] = TyperCommand(name, rich_help_panel=panel)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None and not command.help:
            command.help = _unwrapped(help_of(COMMANDS[cmd_name][1]).get(cmd_name, ""))
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.load(args[0])
        return super().resolve_command(ctx, args)

    def make_context(self, *given: Any, **more: Any) -> Any:
        with _usage_errors_translated():
            return super().make_context(*given, **more)

    def invoke(self, ctx: Any) -> Any:
        with _usage_errors_translated():
            return super().invoke(ctx)

    def load(self, *names: str) -> None:
        """Import these commands; all if none is named."""
        for name in names or COMMANDS:
            import_module(f"dispatcher.cli.{COMMANDS[name][1]}")
        group: Any = get_group(commands)
        for name, command in group.commands.items():
            command.rich_help_panel, _ = COMMANDS[name]
            self.commands[name] = command


def _unwrapped(text: str) -> str:
    """Return a docstring with each paragraph on one line, for a terminal to wrap."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(each.replace("\n", " ") for each in paragraphs)


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
    cls=AllCommands,
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
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print JSON, a line each.")]


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(installed_version(DISTRIBUTION))
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


commands = typer.Typer(rich_markup_mode="rich")
"""The commands of the modules that are imported."""


def command_group(name: str, *, help: str) -> typer.Typer:  # noqa: A002 - typer's word
    group = typer.Typer(cls=OptionNames, no_args_is_help=True, help=help)
    commands.add_typer(group, name=name)
    return group


def command(
    *examples: str, name: str | None = None, of: typer.Typer = commands, **more: Any
) -> Callable[[Function], Function]:
    """Make a function a command with these examples.

    Each parameter whose type is a dataclass stands for its fields, as options.
    """
    epilog = "\n\n".join(["[bold]Examples[/]", *(f"  $ {line}" for line in examples)])

    def register(function: Function) -> Function:
        of.command(name, epilog=epilog, **more)(_with_options(function))
        return function

    return register


def _with_options(function: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter whose type is a dataclass by its fields, as options of the command.

    Fields of one name have one value.
    """
    parameters: dict[str, Parameter] = {}
    kinds: dict[str, Any] = {}
    for name, each in inspect.signature(function, eval_str=True).parameters.items():
        if not is_dataclass(each.annotation):
            parameters[name] = each
            continue
        kinds[name] = each.annotation
        hints = get_type_hints(each.annotation, include_extras=True)
        for field in fields(each.annotation):
            added = each.replace(
                name=field.name, default=field.default, annotation=hints[field.name]
            )
            parameters.setdefault(field.name, added)
    own = inspect.signature(function).parameters.keys() - kinds.keys()

    @wraps(function)
    def call(**given: Any) -> None:
        options = {
            name: kind(**{field.name: given[field.name] for field in fields(kind)})
            for name, kind in kinds.items()
        }
        function(**{name: given[name] for name in own}, **options)

    typed: Any = call  # typer reads the parameters there
    typed.__signature__ = inspect.Signature(list(parameters.values()))
    typed.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    return call


@command("dispatcher version")
def version(as_json: AsJson = False) -> None:
    """Print the version."""
    number = installed_version(DISTRIBUTION)
    output.tell({"version": number}, number, as_json=as_json)


def exit_code(error: DispatcherError) -> int:
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


def say_warning(text: str) -> None:
    _say("[bold yellow]warning:[/]", text)


def say_error(said: str | DispatcherError) -> None:
    """Write an error and its notes to standard error, in one sentence."""
    if isinstance(said, DispatcherError):
        name_options(said)
    text = "; ".join([str(said), *getattr(said, "__notes__", ())])
    _say("[bold red]error:[/]", text)


def _say(label: str, text: str) -> None:
    Terminal(stderr=True, highlight=False, soft_wrap=True).print(label, Text(text))
