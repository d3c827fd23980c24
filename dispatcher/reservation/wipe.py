"""Deleting what is left of the parts that are about to be filled again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import cast

import redis

from dispatcher.redis.keys import ShardKeys, all_of, epoch_of, start_of, tag_of
from dispatcher.redis.scripts import source
from dispatcher.reservation.fence import Fence, Part
from dispatcher.reservation.posted import Posted

_BATCH = 5_000
"""How many keys are looked at in one step, which takes Redis a few milliseconds at most."""
_MOST_AT_ONCE = 1_000
"""Most keys that one script deletes."""

_Names = dict[bytes, list[bytes | str]]


class Wipe:
    """Deletes the contents of parts, guarded by the marker of their rebuild."""

    def __init__(self, client: redis.Redis, fence: Fence, *, marker_life_ms: int) -> None:
        self._client = client
        self._fence = fence
        self._marker_life_ms = marker_life_ms
        self._script = client.register_script(source("reservation/wipe"))

    def wipe(self, marker: str, parts: Sequence[Part]) -> None:
        """Delete what is left of these parts, and whatever belongs to no part of the layout."""
        shards = [part for part in parts if isinstance(part, ShardKeys)]
        self._delete(marker, parts, {part.contents.encode(): [part.pending] for part in shards})
        known = {part.tag for part in self._fence.parts}
        wanted = {part.tag for part in parts}
        cursor = -1
        while cursor:
            cursor, names = self._client.scan(
                max(0, cursor), match=all_of(self._fence.namespace), count=_BATCH
            )
            ours: _Names = defaultdict(list)
            strange: dict[str, list[bytes | str]] = defaultdict(list)
            for name in cast("list[bytes]", names):
                tag = tag_of(name)
                if tag in wanted:
                    ours[start_of(name)].append(name)
                elif tag not in known:
                    strange[tag].append(name)
            self._delete(marker, parts, ours)
            self._delete_strange(strange)

    def _delete(self, marker: str, parts: Sequence[Part], names: _Names) -> None:
        words = [marker, self._marker_life_ms]
        each = [(part, names.get(part.contents.encode(), [])) for part in parts]
        calls = [
            ([part.rebuild, *found[start : start + _MOST_AT_ONCE]], words)
            for part, found in each
            for start in range(0, len(found), _MOST_AT_ONCE)
        ]
        Posted(self._client, self._script, calls).replies()

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
