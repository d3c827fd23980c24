"""The names, modules and help of the commands. Running a command imports its module.

To import them all takes a second, most of it for SQLAlchemy, Celery and Pydantic. So the help of
each command is repeated here, for the list of commands.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group


class _Command(NamedTuple):
    module: str
    panel: str
    help: str


_COMMANDS = {
    "up": _Command(
        "services",
        "Run",
        "Start Redis, SQLite, a worker and a beat in the data folder; run until Ctrl-C.",
    ),
    "worker": _Command(
        "services",
        "Run",
        "Start a Celery worker with the recommended options. Further options go to Celery.",
    ),
    "beat": _Command(
        "services", "Run", "Start a Celery beat, which starts the sweep. Any number may run."
    ),
    "migrate": _Command(
        "services", "Run", "Bring the database to the schema of this version. Safe to repeat."
    ),
    "version": _Command("version", "Run", "Print the version."),
    "submit": _Command("messages", "Submit", "Accept a message for a future time."),
    "show": _Command(
        "messages",
        "Look",
        "Show one message: its fields, its reservations, each attempt, the next step.",
    ),
    "list": _Command("messages", "Look", "List messages, newest first."),
    "held": _Command(
        "messages",
        "Look",
        "List held messages, oldest first: the outcome of their last attempt is unknown.",
    ),
    "update": _Command(
        "messages",
        "Change",
        "Give a scheduled message another body, or that of a template, rendered now.",
    ),
    "next-slot": _Command(
        "messages", "Submit", "Print the first time that fits every quota. Books nothing."
    ),
    "cancel": _Command(
        "changes",
        "Change",
        "Cancel scheduled messages, by id or by filter; their quotas are free again at once.",
    ),
    "reschedule": _Command(
        "changes",
        "Change",
        "Move scheduled messages to another time, by id or by filter; frees the old times at once.",
    ),
    "retry": _Command(
        "changes",
        "Change",
        "Give failed messages further attempts, by id or by filter. They are due at once.",
    ),
    "release": _Command(
        "changes",
        "Change",
        "Release held messages to be sent, perhaps for the second time, by id or by filter.",
    ),
    "drop": _Command(
        "changes",
        "Change",
        "End held messages as failed, by id or by filter. They keep their reservations.",
    ),
    "suppress": _Command(
        "suppressions",
        "Change",
        "Opt a recipient out: refuse new messages and cancel scheduled ones, at once.",
    ),
    "unsuppress": _Command(
        "suppressions",
        "Change",
        "Revoke a suppression, with its channel or without one, as it was made.",
    ),
    "suppressed": _Command(
        "suppressions", "Look", "List all suppressions, or those of one recipient."
    ),
    "status": _Command(
        "status",
        "Look",
        "Show counts, overdue messages, the load of the next hour, limits, workers and beats.",
    ),
    "top": _Command(
        "status",
        "Look",
        "Rank the scopes, recipients or channels with most due messages, and their fullest quota.",
    ),
    "import": _Command(
        "imports",
        "Submit",
        "Submit the messages of a file; report the refused rows and the reasons.",
    ),
    "export": _Command(
        "export",
        "Look",
        "Write messages, oldest first, one row each; with --bodies also their bodies.",
    ),
    "timeline": _Command(
        "timeline",
        "Look",
        "Show what is booked, how full each quota is, what is blocked, and the next free slots.",
    ),
    "windows": _Command(
        "windows", "Run", "Compare the windows in Redis with SQL, or rebuild them."
    ),
    "doctor": _Command(
        "doctor",
        "Look",
        "Examine the servers, the clocks, overdue work, and what the settings name.",
    ),
    "demo": _Command(
        "demo",
        "Run",
        "Play a short scenario on real servers and show what happens. Leaves nothing behind.",
    ),
}


class CommandGroup(TyperGroup):
    """The group of all commands. It lists them without importing their modules."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name, (_, panel, said) in _COMMANDS.items():
            self.commands[name] = TyperCommand(name, help=said, rich_help_panel=panel)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name."""
        if args and args[0] in _COMMANDS:
            self.load(args[0])
        return super().resolve_command(ctx, args)

    def load(self, *names: str) -> None:
        """Import these commands; all if none is named."""
        for module in {_COMMANDS[name].module for name in names or _COMMANDS}:
            part = typer.Typer(rich_markup_mode="rich")
            import_module(f"dispatcher.cli.{module}").register(part)
            for name, command in get_group(part).commands.items():
                if isinstance(command, TyperCommand | TyperGroup):
                    command.rich_help_panel = _COMMANDS[name].panel
                self.commands[name] = command
