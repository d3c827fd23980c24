"""How much a filter or a method of texts would make, known before it does.

Only of those that make much of little: by a width, by a separator, by what they put in the place of
something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Length = Callable[..., int]

_OF_PERCENT = re.compile(r"%(?:\([^)]*\))?[-+ #0]*(\*|[0-9]*)(?:\.(\*|[0-9]*))?")
_OF_BRACES = re.compile(r"\{[^{}]*[:!](?:[^{}]|\{[^{}]*\})*\}")
_MOST_DIGITS = 9


def _indented(text: Any, width: Any = 4, *_: Any, **__: Any) -> int:
    return (str(text).count("\n") + 1) * (width if isinstance(width, int) else len(width))


def _wrapped(text: Any, width: Any = 79, _: Any = True, by: Any = None, **named: Any) -> int:
    del width
    return len(text) * len(named.get("wrapstring", by) or "")


def _joined(items: Any, by: Any = "", *_: Any, **named: Any) -> int:
    return len(items) * len(str(named.get("d", by)))


def _replaced(text: Any, old: Any, new: Any, *_: Any, **__: Any) -> int:
    return str(text).count(str(old)) * len(str(new))


def _wide(_: Any, width: Any = 0, *__: Any, **named: Any) -> int:
    return int(next(iter(named.values()), width))


def by_percent(text: Any, *given: Any, **named: Any) -> int:
    """Return the greatest width or precision of a text with % that is filled."""
    del named  # these cannot be widths
    values = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
    found = [each for pair in _OF_PERCENT.findall(str(text)) for each in pair]
    asked = [abs(each) for each in values if isinstance(each, int)] if "*" in found else []
    return max([*asked, *(_number(each) for each in found if each.isdigit())], default=0)


def _by_braces(text: Any, *given: Any, **named: Any) -> int:
    """Return the greatest width or precision of a text with {} that is filled."""
    fields = _OF_BRACES.findall(str(text))
    numbers = [each for field in fields for each in re.findall(r"[0-9]+", field.split(":", 1)[-1])]
    nested = [name for field in fields for name in re.findall(r"\{([^{}]*)\}", field[1:])]
    asked = [each for name in nested for each in _meant(name, given, named)]
    return max([*map(_number, numbers), *asked], default=0)


def _meant(name: str, given: Sequence[Any], named: Mapping[str, Any]) -> list[int]:
    """Return the number that a nested field names; of one that is not plain, all that it may be."""
    values: Sequence[Any] = (*given, *named.values())
    if name in named:
        values = [named[name]]
    elif name.isdigit():
        values = given[int(name) : int(name) + 1]
    return [each for each in values if isinstance(each, int)]


def _number(digits: str) -> int:
    return int(digits[: _MOST_DIGITS + 1])


FILTERS: Mapping[str, Length] = {
    "batch": _wide,
    "center": _wide,
    "format": by_percent,
    "indent": _indented,
    "join": _joined,
    "replace": _replaced,
    "slice": _wide,
    "wordwrap": _wrapped,
}
METHODS: Mapping[str, Length] = {
    "center": _wide,
    "expandtabs": lambda text, size=8: text.count("\t") * size,
    "format": _by_braces,
    "format_map": lambda text, values: _by_braces(text, **values),
    "join": lambda by, items: len(items) * len(by),
    "ljust": _wide,
    "replace": _replaced,
    "rjust": _wide,
    "zfill": _wide,
}
