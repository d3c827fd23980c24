"""Runs commands, and the Lua scripts in the folders ``lua`` of the packages that call them.

A script is named ``package/name`` and opens with its contract. A line ``-- @include name.lua`` is
replaced by another file of the folder, so that scripts share functions. The line ``-- @parts`` is
replaced by the parts that the caller names.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import redis
from redis.exceptions import NoScriptError

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis.cluster import Cluster
from dispatcher.redis.errors import REPLICA, reason, translated

_PARTS = "-- @parts\n"
Call = tuple[Sequence[bytes | str], Sequence[Any]]
"""Keys and arguments of one call of a script."""
_Command = Sequence[bytes | str]
Packable = float | bytes | tuple["Packable", ...]
_INCLUDE = re.compile(r"^-- @include (\w+)\.lua$", re.MULTILINE)


class Script(NamedTuple):
    text: str
    sha: str

    @classmethod
    def of(cls, text: str) -> Script:
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


@cache
def script(name: str) -> Script:
    return Script.of(source(name))


@cache
def source(name: str) -> str:
    package, _, file = name.partition("/")
    text = (files("dispatcher") / package / "lua" / f"{file}.lua").read_text(encoding="utf-8")
    return _INCLUDE.sub(lambda match: source(f"{package}/{match[1]}"), text)


@cache
def composed(name: str, parts: tuple[str, ...]) -> str:
    package = name.partition("/")[0]
    return source(name).replace(_PARTS, "\n".join(source(f"{package}/{part}") for part in parts))


def packed(value: Packable) -> bytes:
    """Return numbers, short bytes, tuples and named tuples (tables with names) as MessagePack.

    It is for ``cmsgpack``. Numbers are doubles, as in Lua: whole numbers are exact up to 2**53.
    """
    if isinstance(value, bytes):
        return bytes([0xD9, len(value)]) + value
    if not isinstance(value, tuple):
        return struct.pack(">Bd", 0xCB, value)
    names: tuple[str, ...] | None = getattr(value, "_fields", None)
    if names is None:
        return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(packed, value))
    named = zip(names, value, strict=True)
    words = (bytes([0xD9, len(name)]) + name.encode() + packed(field) for name, field in named)
    return struct.pack(">BI", 0xDF, len(value)) + b"".join(words)


def replies_of(client: redis.Redis, script: Script, calls: Sequence[Call]) -> list[Any]:
    """Return the replies of a script to these calls, sent together in one round trip.

    On a cluster: one round trip for each node that has some of the keys, one after the other.
    ``script`` may be run again: where replies are lost all calls are repeated. Raises
    redis.RedisError and, on a cluster, RedisClusterException.
    """
    commands = []
    for names, words in calls:
        # hiredis, which would encode numbers, ends the process when a signal raises meanwhile.
        encoded = words
        if not {int, bool}.isdisjoint(map(type, words)):
            encoded = [b"%d" % word if isinstance(word, int) else word for word in words]
        commands.append(["EVALSHA", script.sha, b"%d" % len(names), *names, *encoded])
    if not isinstance(client, Cluster):
        replies = _on_one_server(client, script, commands)
    else:
        replies = client.replies(
            [names[0] for names, _ in calls],
            lambda server, numbers: _on_one_server(server, script, [commands[n] for n in numbers]),
            # EVAL, because another server may not know the script.
            lambda number: ["EVAL", script.text, *commands[number][2:]],
        )
    for reply in replies:
        if isinstance(reply, Exception):
            is_demoted = isinstance(reply, redis.RedisError) and reason(reply) == REPLICA
            if is_demoted and not isinstance(client, Cluster):
                # Its name may lead to the master by now. Other threads read from those in use.
                client.connection_pool.disconnect(inuse_connections=False)
            raise reply
    return replies


def replies_to(client: redis.Redis, commands: Iterable[Sequence[Any]]) -> list[Any]:
    """Return the replies to commands, sent together. Raises ReservationsUnavailable."""
    with translated(ReservationsUnavailable):
        pipeline: Any = client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = pipeline.execute()
    return replies


def _on_one_server(server: redis.Redis, script: Script, commands: Sequence[_Command]) -> list[Any]:
    replies: list[Any]
    if len(commands) == 1:
        try:
            replies = [server.execute_command(*commands[0])]
        except redis.ResponseError as error:
            replies = [error]
    else:
        # A Script in a pipeline would ask first whether the server knows it: one more round trip.
        pipeline = server.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        replies = pipeline.execute(raise_on_error=False)
    # Perhaps not all: another client may load the script, or flush it, between two calls.
    unknown = [number for number, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:
        server.script_load(script.text)
        again = _on_one_server(server, script, [commands[number] for number in unknown])
        for number, reply in zip(unknown, again, strict=True):
            replies[number] = reply
    return replies
