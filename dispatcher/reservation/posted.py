"""Script calls that are on their way while their sender does something else."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import redis

log = logging.getLogger(__name__)

_Call = tuple[Sequence[bytes | str], Sequence[Any]]


class Posted:
    """Calls of one script, sent together when this is made; ``calls`` are keys and arguments.

    For scripts that may be run again: whatever goes wrong on the way, they are run once more as a
    pipeline, and what that raises is raised. Read the replies or :meth:`abandon` them.
    """

    def __init__(self, client: redis.Redis, script: Any, calls: Sequence[_Call]) -> None:
        self._client = client
        self._script = script
        self._calls = calls
        self._connection: Any = None
        if not calls:
            return
        try:
            self._connection = client.connection_pool.get_connection()
            packed = self._connection.pack_commands(
                [("EVALSHA", script.sha, str(len(keys)), *keys, *words) for keys, words in calls]
            )
            # In one piece it takes the least room in the socket's buffer, so that sending it
            # does not wait for the server.
            self._connection.send_packed_command([b"".join(packed)])
        except redis.RedisError as error:
            log.debug("sent again in the ordinary way: %s", type(error).__name__)
            self._cut()
        except BaseException:
            self._cut()
            raise

    def replies(self) -> list[Any]:
        """Wait for the replies, one for each call in order. Raises redis.RedisError."""
        replies = self._read()
        return self._ordinary() if replies is None else replies

    def abandon(self) -> None:
        """Wait until the calls are done, if they ever are; what comes of them does not matter."""
        self._read()

    def _read(self) -> list[Any] | None:
        if self._connection is None:
            return None
        try:
            replies = [self._connection.read_response() for _ in self._calls]
        except redis.RedisError as error:
            log.debug("asked again in the ordinary way: %s", type(error).__name__)
            self._cut()
            return None
        except BaseException:
            self._cut()
            raise
        self._release()
        return replies

    def _cut(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._release()

    def _release(self) -> None:
        connection, self._connection = self._connection, None
        self._client.connection_pool.release(connection)

    def _ordinary(self) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for keys, words in self._calls:
            self._script(keys=keys, args=words, client=pipeline)
        return pipeline.execute() if self._calls else []
