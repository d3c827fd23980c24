"""Commands for those who decide about unknown outcomes: held, release, drop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated
from uuid import UUID

import typer

from dispatcher.cli import show
from dispatcher.cli.app import exit_code, say_error
from dispatcher.cli.messages import AsJson
from dispatcher.client import Dispatcher
from dispatcher.errors import DispatcherError, Unavailable
from dispatcher.message import Message

MessageIds = Annotated[list[str], typer.Argument(metavar="ID...")]


def register(app: typer.Typer) -> None:
    """Add these commands to ``app``."""
    app.command()(held)
    app.command()(release)
    app.command()(drop)


def held(
    at_most: Annotated[int, typer.Option(help="How many, oldest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List messages that are held, oldest first: nobody knows whether they were sent."""
    with Dispatcher() as dispatcher:
        found = dispatcher.held(at_most=at_most)
    if as_json:
        show.as_json([show.message_data(message) for message in found])
    elif found:
        show.out.print(show.held_table(found))
    else:
        show.out.print("no messages are held")


def release(message_ids: MessageIds, as_json: AsJson = False) -> None:
    """Let held messages be sent, perhaps once more.

    They are due at once; what is past its expiry ends as expired.
    """
    with Dispatcher() as dispatcher:
        _decide(message_ids, dispatcher.release, as_json=as_json)


def drop(message_ids: MessageIds, as_json: AsJson = False) -> None:
    """Give held messages up: they end as failed and keep their places.

    To be used where the provider says that it has them, or nobody is to wait for them.
    """
    with Dispatcher() as dispatcher:
        _decide(message_ids, dispatcher.drop, as_json=as_json)


def _decide(
    message_ids: Sequence[str], decide: Callable[[UUID | str], Message], *, as_json: bool
) -> None:
    """Decide about each message; one that is refused does not stop the others.

    The exit code is that of the first refusal.
    """
    decided: list[Message] = []
    refusals: list[DispatcherError] = []
    for message_id in message_ids:
        try:
            message = decide(message_id)
        except Unavailable:
            _tell(decided, as_json=as_json)
            raise
        except DispatcherError as error:
            say_error(str(error))
            refusals.append(error)
        else:
            decided.append(message)
    _tell(decided, as_json=as_json)
    if refusals:
        raise typer.Exit(exit_code(refusals[0]))


def _tell(decided: Sequence[Message], *, as_json: bool) -> None:
    if as_json:
        show.as_json([show.message_data(message) for message in decided])
        return
    for message in decided:
        show.out.print(f"{message.id} is {show.status_text(message.status)}")
