"""Draws docs/pictures/states.svg: the statuses of a message, and every way between them.

Run it from the root of the repository: ``python -m docs.pictures.draw_states``. A test compares the
ways with the list of docs/guarantees.md, and the picture with what is drawn here.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

from dispatcher.message import Status

PICTURE = Path(__file__).with_name("states.svg")
NONE, DELETED = "none", "deleted"

_Point = tuple[int, int]
_WIDTH, _HEIGHT = 1080, 660
_HALF_WIDTH, _HALF_HEIGHT = 62, 22
_HEAD, _SPREAD = 9, 0.42
_PLACES: dict[str, _Point] = {
    Status.SCHEDULED: (230, 300),
    Status.SENDING: (600, 300),
    Status.SENT: (970, 300),
    Status.EXPIRED: (600, 80),
    Status.CANCELLED: (230, 520),
    Status.HELD: (600, 520),
    Status.FAILED: (970, 520),
}
_DOTS: dict[str, _Point] = {NONE: (230, 190), DELETED: (60, 190)}


class Way(NamedTuple):
    """A transition: what makes it, by which points it goes, and where its word stands.

    Two points are a line, four a Bézier curve.
    """

    source: str
    target: str
    word: str
    points: tuple[_Point, ...]
    at: _Point


_S = Status
WAYS = (
    Way(NONE, _S.SCHEDULED, "submit", ((230, 196), (230, 278)), (230, 222)),
    Way(_S.SCHEDULED, DELETED, "look again: slot lost", ((172, 278), (66, 197)), (106, 240)),
    Way(
        _S.SCHEDULED, _S.SCHEDULED, "enqueue, reschedule",
        ((168, 290), (80, 275), (80, 345), (168, 312)), (112, 350),
    ),
    Way(_S.SCHEDULED, _S.SENDING, "claim", ((292, 290), (538, 290)), (415, 284)),
    Way(
        _S.SENDING, _S.SCHEDULED, "snooze, retry, rescue", ((538, 310), (292, 310)), (415, 328)
    ),
    Way(
        _S.SCHEDULED, _S.CANCELLED, "cancel, suppress, opted out, look again",
        ((230, 322), (230, 498)), (145, 440),
    ),
    Way(
        _S.SCHEDULED, _S.EXPIRED, "claim after expiry, catch up",
        ((262, 278), (330, 150), (430, 80), (538, 80)), (372, 130),
    ),
    Way(
        _S.SCHEDULED, _S.SENT, "late record",
        ((285, 278), (420, 150), (800, 150), (940, 278)), (790, 196),
    ),
    Way(
        _S.SENDING, _S.EXPIRED, "retry or rescue after expiry",
        ((585, 278), (585, 102)), (560, 150),
    ),
    Way(_S.SENDING, _S.SENT, "record", ((662, 300), (908, 300)), (830, 293)),
    Way(_S.SENDING, _S.HELD, "record, rescue", ((600, 322), (600, 498)), (600, 445)),
    Way(_S.SENDING, _S.FAILED, "record, rescue", ((655, 322), (912, 502)), (868, 452)),
    Way(_S.HELD, _S.SCHEDULED, "release, late record", ((542, 500), (280, 322)), (420, 410)),
    Way(_S.HELD, _S.SENT, "late record", ((655, 498), (918, 322)), (850, 380)),
    Way(_S.HELD, _S.FAILED, "drop, late record", ((662, 520), (908, 520)), (785, 538)),
    Way(
        _S.HELD, _S.EXPIRED, "release after expiry",
        ((630, 498), (760, 400), (760, 160), (662, 92)), (758, 246),
    ),
    Way(_S.FAILED, _S.SENT, "late record", ((970, 498), (970, 322)), (1010, 420)),
    Way(
        _S.FAILED, _S.SCHEDULED, "retry",
        ((930, 542), (760, 660), (330, 680), (255, 322)), (640, 622),
    ),
)  # fmt: skip


def svg() -> str:
    """Return the picture."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"',
        ' font-family="sans-serif" font-size="13" text-anchor="middle">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    lines += [_arrow(way.points) for way in WAYS]
    for name, (x, y) in _DOTS.items():
        fill = "black" if name == NONE else "white"
        lines.append(f'<circle cx="{x}" cy="{y}" r="6" fill="{fill}" stroke="black"/>')
    for status, (x, y) in _PLACES.items():
        is_final = Status(status).is_final
        lines += [_box(x, y, margin=margin) for margin in ((0, 4) if is_final else (0,))]
        lines.append(f'<text x="{x}" y="{y + 5}" font-weight="bold">{status}</text>')
    for way in WAYS:
        x, y = way.at
        halo = 'stroke="white" stroke-width="5" stroke-linejoin="round"'
        lines += [f'<text x="{x}" y="{y}"{more}>{way.word}</text>' for more in (f" {halo}", "")]
    note = "Doubly framed is final; prune deletes it."
    lines.append(f'<text x="{_WIDTH // 2}" y="{_HEIGHT - 8}" fill="#555">{note}</text>')
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


def _box(x: int, y: int, *, margin: int) -> str:
    left, top = x - _HALF_WIDTH + margin, y - _HALF_HEIGHT + margin
    size = f'width="{2 * (_HALF_WIDTH - margin)}" height="{2 * (_HALF_HEIGHT - margin)}"'
    return f'<rect x="{left}" y="{top}" {size} rx="10" fill="#eef4ff" stroke="#1f4e9c"/>'


def _arrow(points: tuple[_Point, ...]) -> str:
    """Return a line or a curve, and its head in the direction in which it arrives."""
    (x, y), *rest = points
    (from_x, from_y), (to_x, to_y) = points[-2:]
    angle = math.atan2(to_y - from_y, to_x - from_x)
    wings = [
        (round(to_x - _HEAD * math.cos(angle + turn)), round(to_y - _HEAD * math.sin(angle + turn)))
        for turn in (_SPREAD, -_SPREAD)
    ]
    kind = "L" if len(rest) == 1 else "C"
    path = f"M{x} {y}{kind}" + " ".join(f"{each[0]} {each[1]}" for each in rest)
    head = " ".join(f"{each[0]},{each[1]}" for each in (*wings, (to_x, to_y)))
    return f'<path d="{path}" fill="none" stroke="#555"/>\n<polygon points="{head}" fill="#555"/>'


def main() -> None:
    """Draw it again."""
    PICTURE.write_text(svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
