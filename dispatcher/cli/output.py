"""Output of messages and errors: tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, TypeVar
from uuid import UUID

from rich.console import Console, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from dispatcher.errors import DispatcherError, SlotRefused
from dispatcher.message import Message, Status, visible_text
from dispatcher.times.clock import length_text
from dispatcher.times.send_time import as_text
from dispatcher.times.zones import known_zone, rules

T = TypeVar("T")

_STYLES = {
    Status.SCHEDULED: "cyan",
    Status.SENDING: "blue",
    Status.SENT: "green",
    Status.FAILED: "red",
    Status.EXPIRED: "yellow",
    Status.CANCELLED: "dim",
    Status.HELD: "magenta",
}

_JSON = frozenset({str, int, float, bool})
_WIDEST = 10_000
_PIPED_WIDTH = 160
"""Columns without a terminal: enough that no word is broken."""


class Terminal(Console):
    """A console that escapes control characters, so that no terminal obeys foreign text."""

    def render(self, *arguments: Any, **more: Any) -> Iterator[Segment]:
        for text, style, control in super().render(*arguments, **more):
            yield Segment(text if control else visible_lines(text), style, control)


_is_known = "COLUMNS" in os.environ or (sys.stdout is not None and sys.stdout.isatty())
out = Terminal(markup=False, highlight=False, width=None if _is_known else _PIPED_WIDTH)

as_json = False

shapes: dict[type, Callable[[Any], object]] = {}
"""How values of a type are written as JSON, where that is not by their fields."""

has_written = False
"""Whether this run of a command has written JSON."""


def write_json(value: object, *, indent: int | None = 2) -> None:
    global has_written  # noqa: PLW0603 - a run is a process
    has_written = True
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent)
    print(visible_lines(text))  # noqa: T201 - it is the output


def tell(data: object, shown: RenderableType) -> None:
    if as_json:
        write_json(data)
    else:
        out.print(shown, soft_wrap=isinstance(shown, str | Text))


def tell_rows(
    values: Sequence[T],
    names: Sequence[str],
    others: Mapping[str, Callable[[T], Cell]],
    *,
    otherwise: str,
) -> None:
    """Print lines of JSON, or a table: attributes by ``names``, ``others`` by their headings."""
    if as_json:
        for value in values:
            write_json(value, indent=None)
        return
    cells: list[Callable[[T], Cell]] = [*map(attrgetter, names), *others.values()]
    rows = [[cell(value) for cell in cells] for value in values]
    out.print(listed((*names, *others), rows) if rows else otherwise)


def visible_lines(text: str) -> str:
    return "\n".join(map(visible_text, text.split("\n")))


def plain(value: object) -> Any:
    """Return JSON values: instants in UTC to the millisecond, lengths in seconds."""
    if value is None or type(value) in _JSON:  # most values, and the quickest to tell
        return value
    if isinstance(value, datetime):
        return as_text(value)
    if isinstance(value, timedelta):
        return value.total_seconds()
    if type(value) in shapes:
        value = shapes[type(value)](value)
    elif is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {plain(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, int | float) else str(value)


def message_data(message: Message) -> dict[str, Any]:
    data = {field.name: plain(getattr(message, field.name)) for field in fields(message)}
    return {"id": data["id"], "status": data["status"]} | data | {"scopes": data["scopes"] or None}


shapes[Message] = message_data


def attributes(*names: str) -> Callable[[object], dict[str, Any]]:
    """Return the shape of attributes by their names; ``id=message_id`` has another name."""
    parts = (name.partition("=") for name in names)
    getters = {name: attrgetter(attribute or name) for name, _, attribute in parts}
    return lambda value: {name: get(value) for name, get in getters.items()}


def error_data(error: DispatcherError) -> dict[str, Any]:
    carried = {name: value for name, value in vars(error).items() if name[0] != "_"}
    return {"error": type(error).__name__, "text": str(error)} | carried


def outcome_text(message: Message, *, with_time: bool = False) -> Text:
    text = Text.assemble(f"{message.id} is ", status_text(message.status))
    if with_time:
        text.append(f" for {local_text(message.send_at, message.zone)}")
        if message.asked_at is not None:
            text.append(f"; requested: {local_text(message.asked_at, message.zone)}")
    return text


def local_text(instant: datetime, zone: str | None) -> str:
    known = known_zone(zone)
    if known is None:
        return as_text(instant)
    return instant.astimezone(rules(known)).isoformat(timespec="milliseconds")


@contextmanager
def refused_in(zone: str | None) -> Iterator[None]:
    """Add the next slot in ``zone`` to a refusal."""
    try:
        yield
    except SlotRefused as refused:
        if zone is not None:
            local = local_text(refused.next_slot, zone)
            refused.add_note(f"by the clocks of {zone} that is {local}")
        raise


Cell = Text | str | int | UUID | datetime | timedelta | None
"""A cell of a table: styled text, or a value that is written as text; instants in UTC."""


def listed(
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    wraps: bool = False,
) -> RenderableType:
    """Return rows as a table, or their cells below each other where the terminal is too narrow.

    So no id, number or recipient is broken over lines; with ``wraps`` the last column is wrapped.
    """
    texts = [list(map(_text, row)) for row in rows]
    table = Table(
        box=None, header_style="bold", show_header=any(headings), padding=(0, 1 + wraps, 0, 0)
    )
    for number, heading in enumerate(headings):
        cells = [Text(visible_text(heading)), *(row[number] for row in texts)]
        is_wrapped = wraps and number == len(headings) - 1
        table.add_column(
            cells[0],
            min_width=None if is_wrapped else max(cell.cell_len for cell in cells),
            no_wrap=not is_wrapped,
            justify="right" if any(cell.justify for cell in cells) else "left",
        )
    for row in texts:
        table.add_row(*row)
    if out.measure(table, options=out.options.update(width=_WIDEST)).minimum <= out.width:
        return table
    lines: list[Text] = []
    for first, *others in texts:
        lines += [first] if first else []
        for heading, cell in zip(headings[1:], others, strict=True):
            if cell:
                name = f"  {heading.partition(' (')[0]} " if heading else "  "
                head = Text(name, style="dim")
                line = Text.assemble(head, cell)
                lines += [line] if line.cell_len <= out.width else [head, cell]
    zones = dict.fromkeys(heading.partition(" (")[2].rstrip(")") for heading in headings)
    lines += [Text(f"times: {zone}", style="dim") for zone in zones if zone]
    for line in lines:
        line.overflow = "fold"
    return Group(*lines)


def _text(cell: Cell) -> Text:
    match cell:
        case Text():
            return cell
        case Status():
            return status_text(cell)
        case datetime():
            return Text(second_text(cell))
        case timedelta():
            return number_text(length_text(cell))
        case int():
            return number_text(f"{cell:,}")
    return Text("" if cell is None else visible_text(str(cell)))


def number_text(text: str, style: str = "") -> Text:
    """Return the cell of a number: its column stands at the right."""
    return Text(text, style, justify="right")


def status_text(status: Status) -> Text:
    return Text.assemble((status.value, _STYLES[status]))


def second_text(instant: datetime, zone: str | None = None) -> str:
    local = instant.astimezone(UTC if zone is None else rules(zone))
    return local.strftime("%Y-%m-%d %H:%M:%S")
