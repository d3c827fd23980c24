"""Records what a script of ours is called with, so that others can be called the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from redis.commands.core import Script

from dispatcher.redis.scripts import source


def call_of(name: str, action: Callable[[], object]) -> tuple[list[Any], list[Any]]:
    """Return the keys and the arguments with which an action last calls that script."""
    calls: list[tuple[list[Any], list[Any]]] = []
    call = Script.__call__

    def record(script: Script, keys: Any = None, args: Any = None, client: Any = None) -> Any:
        if script.script == source(name):
            calls.append((list(keys), list(args)))
        return call(script, keys, args, client)

    with patch.object(Script, "__call__", record):
        action()
    return calls[-1]
