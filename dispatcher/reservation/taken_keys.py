"""Keys of reservations that other programs wrote: they are of another type than ours.

A call that needs one fails, and the reply of the server does not name it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import redis

from dispatcher.errors import ReservationsUnavailable
from dispatcher.redis import scripts
from dispatcher.redis.keys import all_of, pending_of, scope_of, tag_of
from dispatcher.redis.scripts import Call, Script

REMEDY = (
    "find that program, then delete the key by `dispatcher windows rebuild`, which fills the "
    "windows again"
)
_AT_ONCE = 500
_OTHER_TYPES = ("string", "list", "set", "hash", "stream")


def taken_keys(client: redis.Redis, namespace: str) -> Iterator[bytes]:
    for kind in _OTHER_TYPES:
        names = client.scan_iter(match=all_of(namespace), count=_AT_ONCE, _type=kind)
        yield from filter(_is_ours, names)


def taken(name: bytes) -> ReservationsUnavailable:
    error = ReservationsUnavailable(
        f"another program wrote a key of {tag_of(name)} (WRONGTYPE)", remedy=REMEDY
    )
    error.redis_key = name.decode("utf-8", "backslashreplace")
    return error


def replies_of(client: redis.Redis, script: Script, calls: Sequence[Call]) -> list[Any]:
    """Return the replies of a script like :func:`dispatcher.redis.scripts.replies_of`.

    Raises ReservationsUnavailable where a key of reservations is of another type.
    """
    try:
        return scripts.replies_of(client, script, calls)
    except redis.ResponseError as error:
        if "WRONGTYPE" in str(error):
            _refuse_taken(client, calls)
        raise


def _is_ours(name: bytes) -> bool:
    """Whether a key has the name of a window or of a ``pending``, and so must be a ZSET."""
    return scope_of(name) is not None or name == pending_of(tag_of(name)).encode()


def _refuse_taken(client: redis.Redis, calls: Sequence[Call]) -> None:
    names = (name for keys, _ in calls for name in keys)
    encoded = {name.encode() if isinstance(name, str) else name for name in names}
    ours = sorted(filter(_is_ours, encoded))
    pipeline = client.pipeline(transaction=False)
    for name in ours:
        pipeline.type(name)
    for name, kind in zip(ours, pipeline.execute(), strict=True):
        if kind not in {b"zset", b"none"}:
            raise taken(name) from None
