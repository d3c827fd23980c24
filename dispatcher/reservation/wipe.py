"""Deleting what is left of the parts that are about to be filled again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import redis

from dispatcher.lua import source
from dispatcher.redis_keys import ShardKeys, all_of, epoch_of, start_of, tag_of
from dispatcher.reservation.fence import Fence, Part

_BATCH = 500

_Names = dict[bytes, list[bytes | str]]


class Wipe:
    """Deletes the contents of parts, guarded by the marker of their rebuild."""

    def __init__(self, client: redis.Redis, fence: Fence, *, marker_life_ms: int) -> None:
        self._client = client
        self._fence = fence
        self._marker_life_ms = marker_life_ms
        self._script = client.register_script(source("wipe"))

    def wipe(self, marker: str, parts: Sequence[Part]) -> None:
        """Delete what is left of these parts, and whatever belongs to no part of the layout."""
        shards = [part for part in parts if isinstance(part, ShardKeys)]
        self._delete(marker, parts, {part.contents.encode(): [part.pending] for part in shards})
        ours: _Names = defaultdict(list)
        strange: dict[str, list[bytes | str]] = defaultdict(list)
        known = {part.tag for part in self._fence.parts}
        names = self._client.scan_iter(match=all_of(self._fence.namespace), count=_BATCH)
        for number, name in enumerate(names, start=1):
            if tag_of(name) in known:
                ours[start_of(name)].append(name)
            else:
                strange[tag_of(name)].append(name)
            if number % _BATCH == 0:
                self._delete(marker, parts, ours)
                self._delete_strange(strange)
        self._delete(marker, parts, ours)
        self._delete_strange(strange)

    def hold(self, marker: str, parts: Sequence[Part]) -> None:
        """Keep the marker alive."""
        pipeline = self._client.pipeline(transaction=False)
        for part in parts:
            arguments: list[str | int] = [marker, self._marker_life_ms]
            self._script(keys=[part.rebuild], args=arguments, client=pipeline)
        pipeline.execute()

    def _delete(self, marker: str, parts: Sequence[Part], names: _Names) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for part in parts:
            found = names.get(part.contents.encode())
            if found:
                arguments: list[str | int] = [marker, self._marker_life_ms]
                self._script(keys=[part.rebuild, *found], args=arguments, client=pipeline)
        pipeline.execute()
        names.clear()

    def _delete_strange(self, names: dict[str, list[bytes | str]]) -> None:
        """Delete what another number of shards left behind.

        Each batch takes the epoch along in one transaction, so that a part which others may just
        have opened is never open with something missing.
        """
        for tag, found in names.items():
            with self._client.pipeline(transaction=True) as pipeline:
                pipeline.delete(epoch_of(tag))
                pipeline.unlink(*found)
                pipeline.execute()
        names.clear()
