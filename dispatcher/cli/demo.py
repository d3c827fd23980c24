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

from dispatcher.cli import output
from dispatcher.cli.app import command, say_error, until_stopped
from dispatcher.cli.services import page_beside
from dispatcher.client import Dispatcher
from dispatcher.errors import QuotaExceeded, install_line
from dispatcher.message import Message, Status
from dispatcher.times.clock import MILLISECOND, SystemClock

QUOTAS = "1/20 second, 5/hour, 10/day"
_LOOK_SECONDS, _MOST_LOOKS = 0.1, 600
_LEAD = timedelta(seconds=5)
_SECOND = timedelta(seconds=1)
_PEOPLE = ("ada", "ben", "cleo")
_NEXT = """
Next:
  [bold]dispatcher demo --stay[/]  the same, and its page stays open
  [bold]dispatcher up[/]           servers for your own messages"""


class _StepFailed(Exception):
    pass


@command("dispatcher demo", "dispatcher demo --stay", json="")
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
            _print("starting Redis, SQLite, one Celery worker and one beat …")
            channels = {"file": {"transport": "file"}}
            with (
                environment(folder, tell=say_error, quotas=QUOTAS, channels=channels) as settings,
                Dispatcher(settings) as dispatcher,
                page_beside(settings, signs_in=False) if stay else nullcontext() as sentence,
            ):
                _require(not stay or sentence, f"the page needs an extra: {install_line('web')}")
                _print(f"quotas for each recipient: [bold]{QUOTAS}[/]\n")
                _play(dispatcher, stopped, settings.data_dir / "sent" / "file.jsonl")
                if sentence is None:
                    _print(_NEXT)
                    return
                for number in range(12):
                    in_turn = _PEOPLE[number % len(_PEOPLE)]
                    body = {"text": "Your appointment is soon"}
                    send_in = timedelta(minutes=20 * (number + 1))
                    dispatcher.submit(channel="file", recipient=in_turn, body=body, send_in=send_in)
                _print(f"\n{sentence} – Ctrl-C ends it")
                stopped.wait()
    except _StepFailed as failed:
        _print(f"[red]✗ {escape(str(failed))}[/]")
        raise typer.Exit(1) from None


def _play(dispatcher: Dispatcher, stopped: Event, sent: Path) -> None:
    submit, refusal = partial(_submit, dispatcher), partial(_refusal, dispatcher)
    start = SystemClock().now().replace(microsecond=0) + _LEAD
    _print("[bold]1. Messages for three people, some seconds ahead[/]")
    first = submit("ada", "Your code is 4711", start)
    ben = submit("ben", "Your parcel is here", start + _SECOND)
    cleo = submit("cleo", "See you at nine", start + 2 * _SECOND)

    _print("\n[bold]2. A second one for ada, one second after the first[/]")
    error = refusal("ada", "Your code is 4712", start + _SECOND)
    _require(error.conflicting == (first.id,), "the refusal names another message")
    _require(error.next_slot == start + timedelta(seconds=20), "the refusal names another slot")
    _print(f"  ✗ [yellow]refused[/] by {error.quota}: {_time(first.send_at)} is in the way")
    _print(f"  → the next free slot is [bold]{_time(error.next_slot)}[/] – booked:")
    second = submit("ada", "Your code is 4712", error.next_slot)

    _print("\n[bold]3. One is cancelled, and its slot is free at once[/]")
    at = start + timedelta(seconds=22)
    cancelled = submit("cleo", "Bring the blue folder", at)
    refusal("cleo", "Bring the red folder", at)
    _print("  ✗ [yellow]refused[/]: that slot is taken")
    dispatcher.cancel(cancelled.id)
    _print("  → the first one is [dim]cancelled[/]")
    instead = submit("cleo", "Bring the red folder", at)

    _print("\n[bold]4. The worker delivers[/]")
    promised = [first, ben, cleo, second, instead]
    with output.out.status("waiting for the promised times …"):
        _wait(dispatcher, stopped, promised)
    lines = map(json.loads, sent.read_text(encoding="utf-8").splitlines())
    _check(promised, cancelled, [(line["id"], line["sent_at"]) for line in lines])


def _wait(dispatcher: Dispatcher, stopped: Event, promised: list[Message]) -> None:
    waiting = list(promised)
    for _ in range(_MOST_LOOKS):
        if not waiting:
            return
        _require(not stopped.wait(_LOOK_SECONDS), "stopped before its end")
        for message in waiting[:]:
            status = dispatcher.get(message.id).status
            if status.is_final:
                waiting.remove(message)
                _require(status is Status.SENT, f"{message.id} ended as {status}")
                _print(f"  ✓ {message.recipient}: “{message.body['text']}” is [green]sent[/]")
    _require(not waiting, f"{len(waiting)} messages were not delivered in time")


def _check(promised: list[Message], cancelled: Message, sent: list[tuple[str, str]]) -> None:
    rows: list[tuple[output.Cell, ...]] = []
    for message in (*promised, cancelled):
        times = [datetime.fromisoformat(at) for sent_id, at in sent if sent_id == str(message.id)]
        late = [at - message.send_at for at in times]
        if message is not cancelled:
            _require(len(times) == 1, f"{message.id} was sent {len(times)} times")
            _require(late[0] >= timedelta(0), f"{message.id} was sent early")
        actual = [f"{at:%H:%M:%S.%f}"[:-3] for at in times] or ["never"]
        by = [f"{length // MILLISECOND} ms" for length in late]
        text = str(message.body["text"])
        rows.append((message.recipient, text, _time(message.send_at), *actual, *(by or [""])))
    _require(len(sent) == len(promised), "a message was sent that must not be")
    _print("\n[italic]What reached the file transport[/]")
    headings = ("recipient", "text", "promised (UTC)", "actual", "late by")
    output.out.print(output.listed(headings, rows))
    _print("\n[green]✓ every promise was kept[/]")


def _submit(dispatcher: Dispatcher, name: str, text: str, at: datetime) -> Message:
    message = dispatcher.submit(channel="file", recipient=name, body={"text": text}, send_at=at)
    _print(f"  ✓ {name}: “{text}” accepted for [bold]{_time(message.send_at)}[/]")
    return message


def _refusal(dispatcher: Dispatcher, name: str, text: str, at: datetime) -> QuotaExceeded:
    try:
        _submit(dispatcher, name, text, at)
    except QuotaExceeded as error:
        return error
    raise _StepFailed("a message was accepted that must be refused")


def _require(holds: object, otherwise: str) -> None:
    if not holds:
        raise _StepFailed(otherwise)


def _print(text: str) -> None:
    output.out.print(text, markup=True, highlight=False)


def _time(instant: datetime) -> str:
    return f"{instant:%H:%M:%S}"
