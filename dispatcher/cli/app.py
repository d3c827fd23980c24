"""The application: its commands, exit codes, errors, warnings, progress and signals."""

from __future__ import annotations

import ast
import inspect
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import fields, is_dataclass
from functools import cache, wraps
from importlib import import_module
from importlib.metadata import version as installed_version
from importlib.resources import files
from inspect import Parameter
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from rich.text import Text
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from dispatcher.cli import output
from dispatcher.cli.output import Terminal
from dispatcher.errors import (
    DISTRIBUTION,
    DispatcherError,
    IdempotencyConflict,
    InvalidSettings,
    InvalidValue,
    MessageNotFound,
    SlotRefused,
    TooLate,
    Unavailable,
)

if TYPE_CHECKING:
    from rich.progress import Progress

Function = TypeVar("Function", bound=Callable[..., None])

_EXIT_CODES: tuple[tuple[type[DispatcherError], int], ...] = (
    (InvalidValue, 2),
    (SlotRefused, 3),
    (MessageNotFound, 4),
    (TooLate, 5),
    (IdempotencyConflict, 5),
    (Unavailable, 6),
)

INTERRUPTED = 130

COMMANDS = {
    name: (panel, module)
    for panel, module, names in (
        ("Run", "services", ("up", "worker", "beat", "migrate", "serve", "keys")),
        ("Run", "app", ("version",)),
        ("Submit", "messages", ("submit", "next-slot")),
        ("Look", "messages", ("show",)),
        ("Look", "lists", ("list", "held")),
        ("Look", "files", ("export",)),
        ("Change", "messages", ("update", "cancel", "reschedule", "retry", "release", "drop")),
        ("Change", "lists", ("suppress", "unsuppress", "erase", "pause", "resume")),
        ("Change", "events", ("events",)),
        ("Submit", "series", ("series",)),
        ("Change", "quotas", ("quotas",)),
        ("Change", "zones", ("zones",)),
        ("Look", "lists", ("suppressed",)),
        ("Look", "status", ("status", "top", "load", "refusals")),
        ("Submit", "files", ("import",)),
        ("Look", "status", ("timeline",)),
        ("Run", "doctor", ("windows",)),
        ("Look", "doctor", ("doctor",)),
        ("Run", "demo", ("demo",)),
    )
    for name in names
}

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""That of click, or of typer's copy of click: typer does not export it."""

_options: dict[str, str] = {}
"""How the parameters of the running command are typed."""


@cache
def help_of(module: str) -> Mapping[str, str]:
    """Read the docstrings of a module in its source: to import all modules takes a second."""
    source = files(__package__).joinpath(f"{module}.py").read_text(encoding="utf-8")
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    return {_name_of(node.name): ast.get_docstring(node) or "" for node in functions}


def _name_of(function: str) -> str:
    return function.rstrip("_").replace("_", "-")


class PlainFlags(TyperGroup):
    """A group of commands whose help shows no type for a flag, which takes no value."""

    def get_params(self, ctx: Any) -> Any:
        return _plain(super().get_params(ctx))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _plain(command.get_params(ctx))
        return command


def _plain(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""
    return parameters


class AllCommands(PlainFlags):
    """All commands. Their modules are imported when one of them runs or shows its own help."""

    def list_commands(self, _: Any) -> list[str]:
        for name, (panel, module) in COMMANDS.items():
            if name not in self.commands:
                text = _unwrapped(help_of(module)[name])
                self.commands[name] = TyperCommand(name, help=text, rich_help_panel=panel)
        return list(COMMANDS)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS:
            self.load(args[0])
        return super().resolve_command(ctx, args)

    def load(self, *names: str) -> None:
        for name in names or COMMANDS:
            import_module(f"dispatcher.cli.{COMMANDS[name][1]}")
        group: Any = get_group(commands)
        for name, command in group.commands.items():
            command.rich_help_panel, _ = COMMANDS[name]
            self.commands[name] = command


def _unwrapped(text: str) -> str:
    """Return a docstring with each paragraph on one line, for a terminal to wrap."""
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(paragraph.replace("\n", " ") for paragraph in paragraphs)


def usage_error(error: Any) -> InvalidValue:
    """Return as one sentence what typer would print in a box."""
    command = error.ctx.command_path if error.ctx is not None else "dispatcher"
    text = error.format_message().replace("Value error, ", "").rstrip(".")
    problem = f"{text[:1].lower()}{text[1:]}"
    return InvalidValue(command, problem, f"what `{command} --help` shows")


def name_options(error: DispatcherError) -> None:
    """Make the text of an error name the option: ``--from`` instead of ``from_at``."""
    if not isinstance(error, InvalidValue) or isinstance(error, InvalidSettings):
        return
    if error.field == "columns":
        return  # columns of a file may have the names of parameters
    field, *path = re.split(r"(?=[.\[])", error.field, maxsplit=1)
    said = re.sub(
        r"[a-z]+(?:_[a-z]+)+",
        lambda word: _options.get(word[0], word[0]),
        f"{error.problem}; accepted: {error.accepted}",
    )
    error.args = (f"{_options.get(field, field)}{''.join(path)}: {said}",)


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


JSON_LINES = "Print JSON, a line each."


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


def command_group(function: Callable[[], None]) -> typer.Typer:
    group = typer.Typer(cls=PlainFlags, no_args_is_help=True, help=function.__doc__)
    commands.add_typer(group, name=function.__name__)
    return group


def command(
    *examples: str, of: typer.Typer = commands, json: str = "Print JSON.", **more: Any
) -> Callable[[Function], Function]:
    """Make a function a command with these examples; its docstring is the help.

    Each parameter whose type is a dataclass stands for its fields, as options. ``json`` is the help
    of its option ``--json``; empty: it has none.
    """
    epilog = "\n\n".join(["[bold]Examples[/]", *(f"  $ {line}" for line in examples)])

    def register(function: Function) -> Function:
        name, text = _name_of(function.__name__), _unwrapped(function.__doc__ or "")
        of.command(name, help=text, epilog=epilog, **more)(_with_options(function, json))
        return function

    return register


def _with_options(function: Callable[..., None], json: str) -> Callable[..., None]:
    """Replace each dataclass by options for its fields; fields of one name have one value."""
    parameters: dict[str, Parameter] = {}
    kinds: dict[str, Any] = {}
    own = inspect.signature(function, eval_str=True).parameters
    for name, parameter in own.items():
        if not is_dataclass(parameter.annotation):
            parameters[name] = parameter
            continue
        kinds[name] = parameter.annotation
        hints = get_type_hints(parameter.annotation, include_extras=True)
        for field in fields(parameter.annotation):
            option = parameter.replace(
                name=field.name, default=field.default, annotation=hints[field.name]
            )
            parameters.setdefault(field.name, option)
    if json:
        as_json = Annotated[bool, typer.Option("--json", help=json)]
        parameters["as_json"] = Parameter(
            "as_json", Parameter.KEYWORD_ONLY, default=False, annotation=as_json
        )
    context = Parameter("context", Parameter.KEYWORD_ONLY, annotation=typer.Context)
    parameters.setdefault("context", context)

    @wraps(function)
    def call(**values: Any) -> None:
        _options.clear()
        output.as_json = values.get("as_json", False)
        for option in values["context"].command.params:
            first = option.opts[0]
            is_argument = not first.startswith("-")
            _options[option.name] = option.metavar or first.upper() if is_argument else first
        for name, kind in kinds.items():
            values[name] = kind(**{field.name: values[field.name] for field in fields(kind)})
        function(**{name: values[name] for name in own})

    typed: Any = call  # typer reads the parameters there
    typed.__signature__ = inspect.Signature(list(parameters.values()))
    typed.__annotations__ = {name: parameter.annotation for name, parameter in parameters.items()}
    return call


@command("dispatcher version")
def version() -> None:
    """Print the version."""
    number = installed_version(DISTRIBUTION)
    output.tell({"version": number}, number)


def exit_code(error: DispatcherError) -> int:
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)


def confirm(question: str) -> None:
    """Ask; end the command unless the answer is yes. Raises InvalidValue without an answer."""
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort as error:
        if not isinstance(error.__context__, EOFError):
            raise
        typer.echo(err=True)  # the question has no line end
        problem = "not given, and standard input has no answer"
        raise InvalidValue("--yes", problem, "--yes, or y on standard input") from None
    if not agreed:
        raise typer.Exit(1)


def say_warning(text: str) -> None:
    _say("[bold yellow]warning:[/]", text)


def say_error(said: str | DispatcherError) -> None:
    if isinstance(said, DispatcherError):
        name_options(said)
    text = "; ".join([str(said), *getattr(said, "__notes__", ())])
    _say("[bold red]error:[/]", text)


def _say(label: str, text: str) -> None:
    Terminal(stderr=True, highlight=False, soft_wrap=True).print(label, Text(text))


def bar() -> Progress:
    """Return a progress bar on standard error; without a terminal it shows nothing."""
    from rich import progress  # noqa: PLC0415 - few commands need it

    console = Terminal(stderr=True)
    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeRemainingColumn(),
    )
    return progress.Progress(*columns, console=console, disable=not console.is_terminal)


def say_stopped(error: DispatcherError | KeyboardInterrupt, how_to_go_on: str) -> int:
    if isinstance(error, KeyboardInterrupt):
        say_error(f"interrupted. {how_to_go_on}")
        return INTERRUPTED
    say_error(f"{error}. {how_to_go_on}")
    return exit_code(error)


def terminated_like_interrupted() -> AbstractContextManager[None]:
    return _handled(signal.default_int_handler, signal.SIGTERM)


@contextmanager
def until_stopped() -> Iterator[Event]:
    """Yield an event that signals set instead of ending this process, so that it can clean up."""
    stopped = Event()
    with _handled(lambda *_: stopped.set(), signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield stopped


@contextmanager
def _handled(handler: Callable[..., object], *signals: signal.Signals) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
