"""Cancel messages: end their rows, then release their reservations. The row decides every race."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from dispatcher.errors import DispatcherError, MessageChanged, MessageNotFound, TooLate
from dispatcher.faults import fault
from dispatcher.message import Message, Status
from dispatcher.store import Messages, Movable
from dispatcher.submission.moves import Moves, unchanged
from dispatcher.telemetry.journal import Journal, Transition

_AT_ONCE = 500


class Cancellation:
    """Cancels messages in batches; one message is a batch of one."""

    def __init__(self, *, messages: Messages, moves: Moves, journal: Journal) -> None:
        self._messages = messages
        self._moves = moves
        self._journal = journal

    def cancel(self, message_id: UUID, *, if_unchanged: Message | None = None) -> Message:
        """Cancel a scheduled message and release its reservation at once.

        A cancelled message may be cancelled again. Raises MessageNotFound, MessageChanged, and
        TooLate once the message is being sent or has ended.
        """
        tokens = None
        if if_unchanged is not None:
            tokens = {message_id: unchanged(self._messages, message_id, if_unchanged).token}
        [answer] = self.cancel_many([message_id], tokens=tokens)
        if isinstance(answer, DispatcherError):
            raise answer
        return answer

    def cancel_many(
        self,
        message_ids: Sequence[UUID],
        *,
        tokens: Mapping[UUID, int] | None = None,
        because: str | None = None,
    ) -> list[Message | DispatcherError]:
        """Return for each id what :meth:`cancel` would return or raise, in order.

        ``tokens``, if given, has the move token of every message: those that have another one get
        MessageChanged. ``because`` becomes the ``last_error`` of the messages. Raises
        StoreUnavailable: some may be cancelled; a repeated call returns which.
        """
        answers: list[Message | DispatcherError] = []
        for start in range(0, len(message_ids), _AT_ONCE):
            some = message_ids[start : start + _AT_ONCE]
            found: dict[UUID, Movable] = {}
            for token, these in _by_token(some, tokens).items():
                result = self._messages.cancel(these, move_token=token, because=because)
                found |= result.found
                for each in result.found.values():
                    if each.message.id in result.newly_cancelled:
                        self._journal.tell(Transition.CANCELLED, each.message)
                fault("cancel.after_rows")
                # All, not only the new ones: a process that cancelled may have died before this.
                self._moves.release([
                    each for each in result.found.values()
                    if each.message.status is Status.CANCELLED
                ])  # fmt: skip
            answers += [_answer(each, found.get(each)) for each in some]
        return answers


def _by_token(
    message_ids: Sequence[UUID], tokens: Mapping[UUID, int] | None
) -> Mapping[int | None, Sequence[UUID]]:
    """Return the ids by their move tokens: few groups, because most messages never change."""
    if tokens is None:
        return {None: message_ids}
    groups: dict[int | None, list[UUID]] = {}
    for each in message_ids:
        groups.setdefault(tokens[each], []).append(each)
    return groups


def _answer(message_id: UUID, found: Movable | None) -> Message | DispatcherError:
    if found is None:
        return MessageNotFound(message_id)
    status = found.message.status
    if status is Status.SCHEDULED:
        return MessageChanged(message_id)
    if status is not Status.CANCELLED:
        return TooLate(message_id, status)
    return found.message
