"""Long commands: their progress bars, and how signals end them."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from dispatcher.cli.app import exit_code, say_error
from dispatcher.cli.output import Terminal
from dispatcher.errors import DispatcherError

INTERRUPTED = 130
"""The exit code after an interruption."""


def bar() -> Progress:
    """Return a progress bar on standard error; without a terminal it shows nothing."""
    console = Terminal(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=not console.is_terminal)


def say_stopped(error: DispatcherError | KeyboardInterrupt, how_to_go_on: str) -> int:
    if isinstance(error, KeyboardInterrupt):
        say_error(f"interrupted. {how_to_go_on}")
        return INTERRUPTED
    say_error(f"{error}. {how_to_go_on}")
    return exit_code(error)


def terminated_like_interrupted() -> AbstractContextManager[None]:
    """Make SIGTERM raise KeyboardInterrupt, as Ctrl-C does."""
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
