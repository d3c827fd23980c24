"""The commands of plain calls of ``acquire``, packed ahead as far as they stay the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dispatcher.limiters.addresses import Keys
from dispatcher.limiters.asking import Asking, Reply, Words
from dispatcher.limiters.base import check_permits
from dispatcher.limiters.decision import Decision
from dispatcher.redis.direct import packed

_STAND_IN = "\0"
"""Is nowhere in the names of keys but in the place of a caller's key."""
_LAST_WORDS = 4


class Acquisitions:
    """The commands of plain calls of ``acquire``, packed: few bytes differ from call to call."""

    def __init__(self, asking: Asking, sha: str) -> None:
        self._asking = asking
        self._sha = sha
        self._kept: tuple[Words, dict[int, tuple[bytes, bytes]]] = ((), {})

    def asked(
        self, keys: Keys, n: int, permit: str, *, new: bool
    ) -> tuple[bytes, Callable[[], bytes]] | None:
        """Return the command that takes ``n`` permits for one key, and what makes it once more.

        A command that was sent may have taken them: it is repeated under the same id, which is not
        new any more. None where it cannot be packed ahead. Raises InvalidValue.
        """
        if not (isinstance(keys, str) and keys.isascii() and permit.isascii()):
            return None
        check_permits(n, self._asking.parts)
        again = partial(self.command, keys, n, permit, new=False)
        return self.command(keys, n, permit, new=new), again

    def answer(self, reply: Reply | None, permit: str) -> Decision | None:
        """Return the decision of a reply; None where it must be asked for in another way."""
        if reply is None or len(reply) == 1:
            return None
        return self._asking.decision(reply[0], reply[1:], None, permit)

    def command(self, key: str, n: int, permit: str, *, new: bool) -> bytes:
        """Return the command that takes ``n`` permits for a key, which is ASCII as is ``permit``.

        Raises InvalidValue for a key that cannot be one.
        """
        words = self._asking.words(self._asking.server_ms())
        kept, starts = self._kept
        if kept is not words:
            starts = {}
            self._kept = (words, starts)
        length = len(key)
        if (parts := starts.get(length)) is None:
            parts = starts[length] = self._parts(length, words)
        start, rest = parts
        return b"%b%b%b%b" % (
            start.replace(_STAND_IN.encode() * length, key.encode()),
            rest,
            packed(permit),
            (_ONE_NEW if new else _ONE_AGAIN) if n == 1 else packed(int(new), n, n),
        )

    def _parts(self, length: int, words: Words) -> tuple[bytes, bytes]:
        names = self._asking.addresses.whole(_STAND_IN * length)
        start: Words = ("EVALSHA", self._sha, len(names), *names)
        rest: Words = (self._asking.span, *words)
        many = len(start) + len(rest) + _LAST_WORDS
        return b"*%d\r\n%b" % (many, packed(*start)), packed(*rest)


_ONE_NEW = packed(1, 1, 1)
_ONE_AGAIN = packed(0, 1, 1)
