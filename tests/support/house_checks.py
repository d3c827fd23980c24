"""Whether what a house answers is what its model expects."""

from __future__ import annotations

from uuid import UUID

from dispatcher.errors import (
    BatchRefused,
    DispatcherError,
    InvalidSendTime,
    NoPlace,
    ReservationsUnavailable,
    TooLate,
)
from dispatcher.message import Message, Rejection
from dispatcher.submission import Result
from dispatcher.times.send_time import to_ms
from tests.support.house_model import FAR_AWAY, Accepted, Ask, Expected, HouseModel
from tests.support.zoned_model import is_quiet


class HouseChecks:
    """Compares answers with a model, and tells the model of what was accepted."""

    model: HouseModel

    @property
    def in_order(self) -> bool:
        """Whether a batch is booked draft by draft, because all scopes share a shard."""
        return self.model.house.settings.shards == 1

    def check_message(self, ask: Ask, message: Message, expected: Expected) -> None:
        if isinstance(expected, UUID):
            assert message.id == expected
            return
        assert to_ms(message.send_at) == expected
        orphan = self.model.orphans.get(self.model.twins(ask))
        if orphan is not None:
            assert message.id == orphan.message_id
        self.model.accept(ask, message)
        assert agree(message, self.model.stored[message.id])

    def check_error(self, ask: Ask, error: DispatcherError, expected: Expected) -> None:
        assert isinstance(expected, type)
        assert isinstance(error, expected)
        if isinstance(error, NoPlace):
            self.model.ledger.check(self.model.wish(ask), self.model.start + ask.offset, error)

    def check_moved(self, message: Message, asked: int, latest: int) -> None:
        accepted, at = self.model.stored[message.id], to_ms(message.send_at)
        assert accepted.may_change
        if asked == accepted.at:
            assert at == asked
        else:
            assert not self.model.is_closed(accepted.wish)
            assert at == self.model.slot(accepted.wish, asked, latest, message.id)
            self.model.ledger.book(accepted.wish.scopes, message.id, at)
        accepted.at = at
        assert agree(message, accepted)

    def check_not_moved(
        self, message_id: UUID, asked: int, latest: int, error: DispatcherError
    ) -> None:
        accepted = self.model.stored[message_id]
        if isinstance(error, TooLate):
            assert not accepted.may_change
        elif isinstance(error, ReservationsUnavailable):
            assert self.model.is_closed(accepted.wish)
        elif isinstance(error, InvalidSendTime):
            assert asked < self.model.now or asked >= (accepted.expires or FAR_AWAY)
        else:
            assert isinstance(error, NoPlace)
            assert self.model.slot(accepted.wish, asked, latest, message_id) is NoPlace
            self.model.ledger.check(accepted.wish, asked, error, without=message_id)

    def check_none_of_many(self, results: list[Result], expected: list[Expected]) -> None:
        """A batch of which all or none was to be accepted, and was not."""
        reasons = [each.error for each in results if isinstance(each, Rejection)]
        assert not all(isinstance(each, BatchRefused) for each in reasons)
        for wanted, result in zip(expected, results, strict=True):
            if isinstance(wanted, UUID):
                assert isinstance(result, Message)
                assert result.id == wanted
                continue
            assert isinstance(result, Rejection)
            if self.in_order and isinstance(wanted, type):
                assert isinstance(result.error, wanted | BatchRefused)
            elif self.in_order:
                assert isinstance(result.error, BatchRefused)

    def check_each_of_many(
        self, some: list[Ask], results: list[Result], expected: list[Expected]
    ) -> None:
        for ask, wanted, result in zip(some, expected, results, strict=True):
            if isinstance(result, Message) and isinstance(wanted, UUID):
                assert result.id == wanted
            elif isinstance(result, Message):
                at, wish = to_ms(result.send_at), self.model.wish(ask)
                assert self.model.start + ask.offset <= at <= self.model.latest(ask)
                assert not is_quiet(wish.items, wish.zone, at)
                assert wanted == at or not self.in_order
                self.model.accept(ask, result)
        for ask, wanted, result in zip(some, expected, results, strict=True):
            if isinstance(result, Rejection):
                self._check_refused_of_many(ask, result.error, wanted)

    def _check_refused_of_many(self, ask: Ask, error: Exception, wanted: Expected) -> None:
        """Fail unless a refused draft has no place even now that all others have theirs."""
        if not isinstance(error, NoPlace):
            assert isinstance(wanted, type)
            assert isinstance(error, wanted)
            return
        wish, asked = self.model.wish(ask), self.model.start + ask.offset
        latest = self.model.latest(ask)
        assert self.model.slot(wish, asked, latest) is NoPlace
        assert latest < to_ms(error.next_slot) <= self.model.ledger.slot(wish, asked)
        if self.in_order:
            assert wanted is NoPlace
            self.model.ledger.check_reason(wish, asked, error)


def agree(message: Message, accepted: Accepted) -> bool:
    """Whether a message says what was accepted."""
    expires = None if message.expires_at is None else to_ms(message.expires_at)
    said = to_ms(message.send_at), expires, message.body["text"]
    return said == (accepted.at, accepted.expires, accepted.text)
