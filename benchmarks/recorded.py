"""Records what a script of ours is called with, so that others can be called the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

from dispatcher.redis.scripts import Call, Script, replies_of, source


def call_of(name: str, action: Callable[[], object]) -> tuple[list[Any], list[Any]]:
    """Return the keys and the arguments with which an action last calls that script."""
    seen: list[tuple[list[Any], list[Any]]] = []

    def record(client: Any, script: Script, calls: Sequence[Call]) -> list[Any]:
        if script.text == source(name):
            seen.extend((list(keys), list(words)) for keys, words in calls)
        return replies_of(client, script, calls)

    with patch("dispatcher.reservation.shards.replies_of", record):
        action()
    return seen[-1]
