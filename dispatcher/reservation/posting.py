"""Messages that are booked by calls whose answers are read later, each message in one shard."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from dispatcher.errors import IdempotencyConflict
from dispatcher.redis.keys import ShardKeys
from dispatcher.reservation.places import Batch, Group, Place, Request
from dispatcher.reservation.posted import Posted
from dispatcher.reservation.shards import Answer, Shards
from dispatcher.scope import Scope

_MOST_AT_ONCE = 250
"""Most messages that one script books; it then runs for a few milliseconds at most."""


class Posting:
    """Messages that are being booked, in each shard one after the other.

    ``places`` are the numbers of ``requests``, each with its shard, in the order in which they are
    booked. ``scopes`` are those of a message that lie in its shard; without them all do.
    """

    def __init__(
        self,
        shards: Shards,
        requests: Mapping[int, Request],
        places: Iterable[tuple[int, ShardKeys]],
        scopes: Mapping[int, tuple[Scope, ...]] | None = None,
    ) -> None:
        self._shards = shards
        self.requests = requests
        self._scopes = scopes
        self._waiting: dict[ShardKeys, list[int]] = defaultdict(list)
        for place, keys in places:
            self._waiting[keys].append(place)
        self._post()

    def found(self) -> Mapping[int, Answer]:
        """Wait for the answers, and return them by place. Raises ReservationsUnavailable."""
        found: dict[int, Answer] = {}
        while self._waiting:
            replies = self._shards.answers(self._batches, self._posted)
            for batch, answers in zip(self._batches, replies, strict=True):
                queue = self._waiting[batch.keys]
                found.update(zip(queue, answers, strict=False))
                done = len(answers)
                if done < len(batch.requests):
                    # The next one takes more than one call, and nothing may overtake it.
                    found[queue[done]] = self._slowly(batch.group(done), batch.requests[done])
                    done += 1
                del queue[:done]
                if not queue:
                    del self._waiting[batch.keys]
            self._post()
        return found

    def abandon(self) -> None:
        """Wait until the calls are done; what comes of them does not matter."""
        self._posted.abandon()

    def _post(self) -> None:
        self._batches = []
        for keys, queue in self._waiting.items():
            some = [self.requests[place] for place in queue[:_MOST_AT_ONCE]]
            if self._scopes is None:
                scopes = [each.terms.scopes for each in some]
            else:
                scopes = [self._scopes[place] for place in queue[:_MOST_AT_ONCE]]
            self._batches.append(Batch(keys, some, scopes))
        self._posted: Posted = self._shards.post_many(self._batches)

    def _slowly(self, group: Group, request: Request) -> Answer:
        try:
            place = self._shards.book(
                group,
                request.message_id,
                asked_ms=request.asked_ms,
                latest_ms=request.latest_ms,
                submit=request.submit,
            )
        except IdempotencyConflict as conflict:
            return conflict
        ours = isinstance(place, Place) and place.message_id == request.message_id
        return place.at_ms if isinstance(place, Place) and ours else place
