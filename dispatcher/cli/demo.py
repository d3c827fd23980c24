"""``dispatcher demo``: a short scenario on real servers."""

from __future__ import annotations

import json
import tempfile
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from threading import Event
from typing import Annotated

import typer
from rich.markup import escape
from rich.text import Text

from dispatcher.cli import output
from dispatcher.cli.app import command, say_error
from dispatcher.cli.progress import until_stopped
from dispatcher.cli.serve import page_beside
from dispatcher.client import Dispatcher
from dispatcher.errors import QuotaExceeded
from dispatcher.extras import install_line
from dispatcher.message import Message, Status
from dispatcher.times.clock import SystemClock
from dispatcher.times.lengths import MILLISECOND

QUOTAS = "1/20 second, 5/hour, 10/day"
_DEADLINE_SECONDS = 60.0
_LEAD = timedelta(seconds=4)
_SECOND = timedelta(seconds=1)
_PEOPLE = ("ada", "ben", "cleo")
_HOURS = 4
_NEXT = """
Next:
  [bold]dispatcher demo --stay[/]  the same, and its page stays open
  [bold]dispatcher up[/]           servers for your own messages"""


class _StepFailed(Exception):
    pass


@command("dispatcher demo", "dispatcher demo --stay")
def demo(
    stay: Annotated[
        bool, typer.Option("--stay", help="Keep it running, with its page, until Ctrl-C.")
    ] = False,
) -> None:
    """Play a short scenario on real servers and show what happens. Leaves nothing behind."""
    from dispatcher.embedded import environment  # noqa: PLC0415 - workers need no servers

    try:
        with (
            until_stopped() as stopped,
            tempfile.TemporaryDirectory(prefix="dispatcher-demo-") as folder,
        ):
            output.out.print("starting Redis, SQLite, one Celery worker and one beat …")
            with (
                environment(
                    folder,
                    tell=say_error,
                    quotas=QUOTAS,
                    channels={"file": {"transport": "file"}},
                ) as to,
                Dispatcher(to) as dispatcher,
                page_beside(to, signs_in=False) if stay else nullcontext() as sentence,
            ):
                has_page = sentence is not None
                _require(has_page or not stay, f"the page needs an extra: {install_line('web')}")
                output.out.print(f"quotas for each recipient: [bold]{QUOTAS}[/]\n")
                _require(not stopped.is_set(), "stopped before its end")
                promised, cancelled = _submit_all(dispatcher)
                _deliver(dispatcher, stopped, promised)
                _check(promised, cancelled, to.data_dir / "sent" / "file.jsonl")
                if sentence is None:
                    output.out.print(_NEXT)
                else:
                    _book_hours(dispatcher)
                    output.out.print(f"\n{sentence} – Ctrl-C ends it")
                    stopped.wait()
    except _StepFailed as failed:
        output.out.print(f"[red]✗ {escape(str(failed))}[/]")
        raise typer.Exit(1) from None


def _submit_all(dispatcher: Dispatcher) -> tuple[list[Message], Message]:
    submit = partial(_submit, dispatcher)
    start = SystemClock().now().replace(microsecond=0) + _LEAD + _SECOND
    output.out.print("[bold]1. Messages for three people, some seconds ahead[/]")
    first = submit("ada", "Your code is 4711", start)
    ben = submit("ben", "Your parcel is here", start + _SECOND)
    cleo = submit("cleo", "See you at nine", start + 2 * _SECOND)

    output.out.print("\n[bold]2. A second one for ada, one second after the first[/]")
    error = _refusal(dispatcher, "ada", "Your code is 4712", start + _SECOND)
    _require(error.conflicting == (first.id,), "the refusal names another message")
    _require(error.next_slot == start + timedelta(seconds=20), "the refusal names another slot")
    _say(f"[yellow]refused[/] by {error.quota}: {_time(first.send_at)} is in the way", "✗")
    _say(f"the next free slot is [bold]{_time(error.next_slot)}[/] – booked:", "→")
    second = submit("ada", "Your code is 4712", error.next_slot)

    output.out.print("\n[bold]3. One is cancelled, and its slot is free at once[/]")
    at = start + timedelta(seconds=22)
    cancelled = submit("cleo", "Bring the blue folder", at)
    _refusal(dispatcher, "cleo", "Bring the red folder", at)
    _say("[yellow]refused[/]: that slot is taken", "✗")
    dispatcher.cancel(cancelled.id)
    _say("the first one is [dim]cancelled[/]", "→")
    instead = submit("cleo", "Bring the red folder", at)
    return [first, ben, cleo, second, instead], cancelled


def _deliver(dispatcher: Dispatcher, stopped: Event, promised: list[Message]) -> None:
    output.out.print("\n[bold]4. The worker delivers[/]")
    waiting = {message.id: message for message in promised}
    clock = SystemClock()
    deadline = clock.monotonic() + _DEADLINE_SECONDS
    with output.out.status("waiting for the promised times …"):
        while waiting and clock.monotonic() < deadline:
            _require(not stopped.wait(0.1), "stopped before its end")
            for message in list(waiting.values()):
                now = dispatcher.get(message.id)
                if now.status.is_final:
                    del waiting[message.id]
                    _require(now.status is Status.SENT, f"{message.id} ended as {now.status}")
                    ended = output.status_text(now.status)
                    _say(f"{message.recipient}: “{message.body['text']}” is {ended}")
    _require(not waiting, f"{len(waiting)} messages were not delivered in time")


def _check(promised: list[Message], cancelled: Message, path: Path) -> None:
    sent: dict[str, list[str]] = {}
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        sent.setdefault(line["id"], []).append(line["sent_at"])
    rows: list[tuple[output.Cell, ...]] = []
    for message in promised:
        times = sent.pop(str(message.id), [])
        _require(len(times) == 1, f"{message.id} was sent {len(times)} times")
        actual = datetime.fromisoformat(times[0])
        late = actual - message.send_at
        _require(late >= timedelta(0), f"{message.id} was sent early")
        rows.append(
            (
                message.recipient,
                str(message.body["text"]),
                _time(message.send_at),
                actual.strftime("%H:%M:%S.%f")[:-3],
                f"{late // MILLISECOND} ms",
            )
        )
    _require(str(cancelled.id) not in sent, "the cancelled message was sent")
    text, at = str(cancelled.body["text"]), _time(cancelled.send_at)
    rows.append((cancelled.recipient, text, at, Text.assemble(("never", "dim")), ""))
    _require(not sent, "a message was sent that was not submitted")
    output.out.print("\n[italic]What reached the file transport[/]")
    headings = ("recipient", "text", "promised (UTC)", "actual", "late by")
    output.out.print(output.listed(headings, rows))
    output.out.print("\n[green]✓ every promise was kept[/]")


def _book_hours(dispatcher: Dispatcher) -> None:
    for hour in range(_HOURS):
        for number, name in enumerate(_PEOPLE):
            dispatcher.submit(
                channel="file",
                recipient=name,
                body={"text": "Your appointment is soon"},
                send_in=timedelta(hours=hour, minutes=20 * (number + 1)),
            )


def _submit(dispatcher: Dispatcher, name: str, text: str, at: datetime) -> Message:
    message = dispatcher.submit(channel="file", recipient=name, body={"text": text}, send_at=at)
    _say(f"{name}: “{text}” accepted for [bold]{_time(message.send_at)}[/]")
    return message


def _refusal(dispatcher: Dispatcher, name: str, text: str, at: datetime) -> QuotaExceeded:
    try:
        _submit(dispatcher, name, text, at)
    except QuotaExceeded as error:
        return error
    raise _StepFailed("a message was accepted that must be refused")


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise _StepFailed(otherwise)


def _say(text: str, mark: str = "✓") -> None:
    output.out.print(f"  {mark} {text}", highlight=False)


def _time(instant: datetime) -> str:
    return instant.strftime("%H:%M:%S")
