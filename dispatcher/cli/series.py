"""Series: messages that repeat by a rule."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dispatcher import Recipient, Series
from dispatcher.cli import output
from dispatcher.cli.app import JSON_LINES, command, command_group
from dispatcher.cli.lists import complete_channel, parameters_of
from dispatcher.cli.messages import Content, DeliveryOptions
from dispatcher.client import Dispatcher
from dispatcher.errors import InvalidValue
from dispatcher.submission.series import LOCAL, Conflict, Missed
from dispatcher.times.recurrence import Gap, Repeat

Name = Annotated[str, typer.Argument(metavar="NAME", help="Its name: daily.")]
Rule = Annotated[
    str,
    typer.Argument(metavar="RULE", help='"FREQ=DAILY;BYHOUR=9" of RFC 5545, or cron: "0 9 * * *".'),
]
Channel = Annotated[
    str, typer.Option(help="Channel of the settings.", autocompletion=complete_channel)
]
_ON = 'dispatcher series add daily "0 9 * * *" --channel sms'


@dataclass(frozen=True, kw_only=True)
class _SeriesOptions(DeliveryOptions):
    to: Annotated[
        list[str] | None, typer.Option("--to", "--recipient", help="One; may be repeated.")
    ] = None
    recipients: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|LIST",
            help="A .csv with the columns recipient, zone, and those of the template's data; or a "
            "name in the setting series_recipients.",
        ),
    ] = None
    start: Annotated[str | None, typer.Option(help="From this time on; default: now.")] = None
    until: Annotated[str | None, typer.Option(help="Until this time.")] = None
    count: Annotated[int | None, typer.Option("--times", help="So many times.")] = None
    zone: Annotated[
        str | None, typer.Option(help="Of the rule: Europe/Berlin, or local for each recipient's.")
    ] = None
    gap: Annotated[Gap | None, typer.Option(help="Where clocks skip a time.")] = None
    repeat: Annotated[Repeat | None, typer.Option(help="Where clocks show a time twice.")] = None
    spread: Annotated[
        str | None, typer.Option(help='Recipients get it within this length: "30 minutes".')
    ] = None
    conflict: Annotated[Conflict | None, typer.Option(help="Where a quota is full.")] = None
    window: Annotated[str | None, typer.Option(help='How far to shift: "2 hours".')] = None
    missed: Annotated[
        Missed | None,
        typer.Option(help="Which of those leave that nobody booked in time."),
    ] = None

    def fields(self, content: Content) -> dict[str, Any]:
        """Return what was given."""
        fields = parameters_of(self) | (content.read() if content != Content() else {})
        to, listed = fields.pop("to") or [], fields["recipients"]
        if listed is not None and listed.endswith(".csv"):
            to += _members(Path(listed))
        elif to and listed is not None:
            raise InvalidValue("recipients", "a list given together with --to", "one of them")
        fields["recipients"] = to or listed
        fields["scopes"] = fields["scopes"] or None
        return {name: value for name, value in fields.items() if value is not None}


@command_group
def series() -> None:
    """Add, preview, change and end messages that repeat. They are booked ahead."""


@command(
    f'{_ON} --to +4915112345678 --text "Good morning" --zone Europe/Berlin',
    f"{_ON} --recipients members.csv --template hello --zone local --spread '30 minutes'",
    of=series,
)
def add(
    name: Name, rule: Rule, *, channel: Channel, content: Content, options: _SeriesOptions
) -> None:
    """Add a series. Beat books its messages ahead, each once."""
    with Dispatcher() as dispatcher:
        _show(dispatcher.series.add(name, rule, channel=channel, **options.fields(content)))


@command('dispatcher series change daily --rule "0 10 * * *" --since 2026-12-24', of=series)
def change(
    name: Name,
    *,
    since: Annotated[
        str | None, typer.Option(help="From this time or date on; default: all to come.")
    ] = None,
    rule: Annotated[str | None, typer.Option(help="Another rule.")] = None,
    channel: Annotated[str | None, typer.Option(help="Another channel.")] = None,
    content: Content,
    options: _SeriesOptions,
) -> None:
    """Change what is given; the messages from then on are cancelled and booked anew."""
    fields = options.fields(content)
    with Dispatcher() as dispatcher:
        _show(dispatcher.series.change(name, since, rule=rule, channel=channel, **fields))


@command("dispatcher series list", of=series, json=JSON_LINES)
def list_(
    limit: Annotated[int, typer.Option(help="At most so many.")] = 1_000,
    after: Annotated[str | None, typer.Option(help="Behind the series of this name.")] = None,
) -> None:
    """List the series."""
    with Dispatcher() as dispatcher:
        listed = dispatcher.series.list(limit=limit, after=after)
    others = {"rule": _rule, "recipients": _recipients}
    output.tell_rows(listed, ("name", "channel", "zone"), others, otherwise="no series")


@command("dispatcher series show daily", of=series)
def show(name: Name) -> None:
    """Show a series. `dispatcher list --event series:NAME` lists its messages."""
    with Dispatcher() as dispatcher:
        _show(dispatcher.series.get(name))


@command("dispatcher series preview daily", of=series, json=JSON_LINES)
def preview(
    name: Name,
    count: Annotated[int, typer.Option(help="How many.")] = 10,
    zone: Annotated[
        str | None, typer.Option(help="That of a recipient, for a series in local time.")
    ] = None,
) -> None:
    """Print the next times by the rule."""
    with Dispatcher() as dispatcher:
        times = dispatcher.series.preview(name, count, zone)
        own = dispatcher.series.get(name).zone
        zone = zone if own == LOCAL else own
    for time in times:
        output.tell(time, output.local_text(time, zone))


@command("dispatcher series remove daily", of=series)
def remove(name: Name) -> None:
    """End a series; its scheduled messages are cancelled."""
    with Dispatcher() as dispatcher:
        _show_cancelled(name, "was removed", dispatcher.series.remove(name))


@command("dispatcher series pause daily", of=series)
def pause(name: Name) -> None:
    """Send nothing of a series for a while. Its messages keep their places."""
    with Dispatcher() as dispatcher:
        dispatcher.series.pause(name)
    _show_cancelled(name, "is paused", 0)


@command("dispatcher series resume daily", of=series)
def resume(name: Name) -> None:
    """End a pause. What was missed leaves as the series says."""
    with Dispatcher() as dispatcher:
        _show_cancelled(name, "goes on", dispatcher.series.resume(name))


def _members(path: Path) -> list[Recipient]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = [
                {k: v for k, v in row.items() if v} for row in csv.DictReader(file, strict=True)
            ]
    except (OSError, UnicodeError, csv.Error) as error:
        raise InvalidValue("recipients", f"cannot read the file: {error}", "CSV in UTF-8") from None
    for line, row in enumerate(rows, start=2):
        if "recipient" not in row or None in row:
            problem = f"row {line} of the file has no recipient, or more values than columns"
            raise InvalidValue("recipients", problem, "the columns recipient, zone, and any data")
    return [Recipient(row.pop("recipient"), row.pop("zone", None), row or None) for row in rows]


def _rule(series: Series) -> str:
    return series.rule.replace("RRULE:", "").replace("\n", " ")


def _recipients(series: Series) -> str:
    if isinstance(series.recipients, str):
        return series.recipients
    first, *others = series.recipients
    return f"{first.recipient} and {len(others):,} more" if others else first.recipient


def _show(series: Series) -> None:
    at = f"from {series.start.isoformat()} {series.zone} on {series.channel}"
    left_out = [f"\nskipped {nominal}: {reason}" for nominal, reason in series.skipped]
    text = f"{series.name}: {_rule(series)} {at} to {_recipients(series)}{''.join(left_out)}"
    output.tell(series, text)


def _show_cancelled(name: str, what: str, cancelled: int) -> None:
    also = f", {cancelled:,} of its messages were cancelled" if cancelled else ""
    output.tell({"name": name, "cancelled": cancelled}, f"{name} {what}{also}")


output.shapes[Series] = lambda series: series.model_dump(mode="json")
