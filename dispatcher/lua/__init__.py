"""Reads the Lua scripts that lie beside this file.

A script opens with its contract. ``-- @include name.lua`` on a line of its own puts another file
in its place, so that scripts share functions without sharing a command switch. ``-- @parts`` is
where a script takes in the parts that its caller names.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

_PARTS = "-- @parts\n"
_INCLUDE = re.compile(r"^-- @include (\w+)\.lua$", re.MULTILINE)


@cache
def source(name: str) -> str:
    """Return the text of ``name``.lua with its includes in place."""
    text = (files(__name__) / f"{name}.lua").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda match: source(match[1]), text)


@cache
def composed(name: str, parts: tuple[str, ...]) -> str:
    """Return the text of ``name``.lua with its includes, and those parts, in place."""
    return source(name).replace(_PARTS, "\n".join(source(part) for part in parts))
