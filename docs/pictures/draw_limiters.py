"""Draws docs/pictures/limiters.svg: the same arrivals under every limiter.

The decisions are those of the shipped scripts, on a Redis whose clock is moved from arrival to
arrival. Run it from the root of the repository: ``python -m docs.pictures.draw_limiters``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from dispatcher import limiters
from dispatcher.limiters import Algorithm, CoolDown
from tests.support.limiters import Clocked
from tests.support.servers import RedisServer

PICTURE = Path(__file__).with_name("limiters.svg")
SECOND_US = 1_000_000
NOON_US = 1_763_726_400 * SECOND_US
ARRIVALS = (
    *(20, 50, 52, 54, 56, 58, 64, 66, 68, 70, 72),
    *(82, 84, 86, 88, 100, 112, 125, 140, 155, 170),
)
"""Seconds after noon."""
PAGE = Path(__file__).parents[1] / "limiters.md"
_HEADING = re.compile(r"^\*\*`(\w+\(.*?\))`(.*?)\.\*\*", re.MULTILINE)
_LEFT, _TOP, _ROW, _SCALE, _SECONDS = 290, 40, 34, 4, 180
_WIDTH = _LEFT + _SCALE * _SECONDS + 110


def limits() -> dict[str, Algorithm]:
    """Return the limits of the page that each have a paragraph by the clock."""
    section = PAGE.read_text(encoding="utf-8").split("## Each limiter by the clock")[1]
    known = {name: getattr(limiters, name) for name in limiters.__all__} | {"timedelta": timedelta}
    return {
        text + more: eval(text, {**known})  # noqa: S307 - our own page
        for text, more in _HEADING.findall(section.split("\n## ")[0])
    }


def decisions(client: Clocked) -> dict[str, list[bool]]:
    """Return for each limit which of the arrivals it allows."""
    found = {}
    for name, limit in limits().items():
        limiter = limit.on(client)
        allowed: list[bool] = []
        for second in ARRIVALS:
            if isinstance(limit, CoolDown) and second > 60 > ARRIVALS[len(allowed) - 1]:
                client.set_us(NOON_US + 60 * SECOND_US)
                limiter.close("ada", timedelta(seconds=30))
            client.set_us(NOON_US + second * SECOND_US)
            allowed.append(limiter.acquire("ada").allowed)
        found[name] = allowed
    return found


def svg(found: Mapping[str, Sequence[bool]]) -> str:
    """Return the picture."""
    bottom = _TOP + _ROW * len(found)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 46}"',
        ' font-family="sans-serif" font-size="13">',
        f'<rect width="{_WIDTH}" height="{bottom + 46}" fill="white"/>',
    ]
    for second in range(0, _SECONDS + 1, 20):
        x = _x(second)
        stroke = "#888" if second % 60 == 0 else "#ddd"
        lines += [
            f'<line x1="{x}" y1="{_TOP - 14}" x2="{x}" y2="{bottom}" stroke="{stroke}"/>',
            f'<text x="{x}" y="{_TOP - 20}" text-anchor="middle">{second} s</text>',
        ]
    for row, (name, allowed) in enumerate(found.items()):
        y = _TOP + _ROW * row + _ROW // 2
        lines.append(f'<text x="8" y="{y + 4}">{name}</text>')
        lines += [
            _mark(_x(at), y, allowed=taken) for at, taken in zip(ARRIVALS, allowed, strict=True)
        ]
        lines.append(f'<text x="{_x(_SECONDS) + 14}" y="{y + 4}">{sum(allowed)} allowed</text>')
    lines += [
        _mark(_LEFT, bottom + 24, allowed=True),
        f'<text x="{_LEFT + 12}" y="{bottom + 28}">allowed</text>',
        _mark(_LEFT + 100, bottom + 24, allowed=False),
        f'<text x="{_LEFT + 112}" y="{bottom + 28}">refused</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _x(second: int) -> int:
    return _LEFT + _SCALE * second


def _mark(x: int, y: int, *, allowed: bool) -> str:
    if allowed:
        return f'<circle cx="{x}" cy="{y}" r="4" fill="#1a7f37"/>'
    path = f"M{x - 4} {y - 4}L{x + 4} {y + 4}M{x - 4} {y + 4}L{x + 4} {y - 4}"
    return f'<path d="{path}" stroke="#cf222e" stroke-width="2"/>'


def main() -> None:
    """Draw it again."""
    with RedisServer() as server, Clocked(str(server.socket)) as client:
        PICTURE.write_text(svg(decisions(client)), encoding="utf-8")


if __name__ == "__main__":
    main()
