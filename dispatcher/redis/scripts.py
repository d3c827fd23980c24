"""Reads and runs the Lua scripts in the folders ``lua`` of the packages that call them.

A script is named ``package/name`` and opens with its contract. A line ``-- @include name.lua`` is
replaced by another file of the folder, so that scripts share functions. The line ``-- @parts`` is
replaced by the parts that the caller names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import redis
from redis.commands.core import Script
from redis.exceptions import NoScriptError

_PARTS = "-- @parts\n"
Call = tuple[Sequence[bytes | str], Sequence[Any]]
"""Keys and arguments of one call of a script."""

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


def replies_of(client: redis.Redis, script: Script, calls: Sequence[Call]) -> list[Any]:
    """Return the replies of a script to these calls, sent together in one round trip.

    ``script`` may be run again: where replies are lost the client's retry repeats all calls. Raises
    redis.RedisError.
    """
    if not calls:
        return []
    # A Script in a pipeline would ask first whether the server knows it: one more round trip.
    try:
        return _replies(client, script.sha, calls)
    except NoScriptError:
        client.script_load(script.script)
        return _replies(client, script.sha, calls)


def _replies(client: redis.Redis, sha: str, calls: Sequence[Call]) -> list[Any]:
    sender: Any = client  # execute_command has no types
    if len(calls) == 1:
        return [sender.execute_command(*_command(sha, *calls[0]))]
    pipeline = sender.pipeline(transaction=False)
    for call in calls:
        pipeline.execute_command(*_command(sha, *call))
    replies: list[Any] = pipeline.execute()
    return replies


def _command(sha: str, names: Sequence[bytes | str], words: Sequence[Any]) -> list[bytes | str]:
    """Return a call of a script with its numbers encoded.

    hiredis, which would encode them, ends the process when a signal raises meanwhile.
    """
    sent = [b"%d" % word if isinstance(word, int) else word for word in words]
    return ["EVALSHA", sha, b"%d" % len(names), *names, *sent]
