"""Reads the Lua scripts from the folders ``lua`` of the packages that call them.

A script is named ``package/name`` and opens with its contract. A line ``-- @include name.lua`` is
replaced by another file of the folder, so that scripts share functions. The line ``-- @parts`` is
replaced by the parts that the caller names.
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
    package, _, file = name.partition("/")
    text = (files("dispatcher") / package / "lua" / f"{file}.lua").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda match: source(f"{package}/{match[1]}"), text)


@cache
def composed(name: str, parts: tuple[str, ...]) -> str:
    """Return the text of a script with its includes, and those parts of its folder, in place."""
    package = name.partition("/")[0]
    return source(name).replace(_PARTS, "\n".join(source(f"{package}/{part}") for part in parts))
