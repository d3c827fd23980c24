"""Reads the Lua scripts, which lie in the folder ``lua`` of the room that calls them.

A script is named ``room/name`` and opens with its contract. ``-- @include name.lua`` on a line of
its own puts another file of its folder in its place, so that scripts share functions without
sharing a command switch. ``-- @parts`` is where a script takes in the parts that its caller names.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_PARTS = "-- @parts\n"
_INCLUDE = re.compile(r"^-- @include (\w+)\.lua$", re.MULTILINE)


@cache
def source(name: str) -> str:
    """Return the text of a script, such as ``reservation/reserve``, with its includes in place."""
    room, _, file = name.partition("/")
    text = (files("dispatcher") / room / "lua" / f"{file}.lua").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda match: source(f"{room}/{match[1]}"), text)


@cache
def composed(name: str, parts: tuple[str, ...]) -> str:
    """Return the text of a script with its includes, and those parts of its folder, in place."""
    room = name.partition("/")[0]
    return source(name).replace(_PARTS, "\n".join(source(f"{room}/{part}") for part in parts))
