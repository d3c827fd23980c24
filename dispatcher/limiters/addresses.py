"""The names of the Redis keys of a set of limits, made from callers' keys."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TypeAlias

from redis.crc import key_slot

from dispatcher.errors import InvalidValue, kind_of, quoted
from dispatcher.limiters.base import Part
from dispatcher.redis.keys import LimiterKeys

Keys: TypeAlias = str | Sequence[str]
"""One key for all limits, or one for each of them, in order."""

_LONGEST = 1_024
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_NAME_ACCEPTED = "1 to 64 letters, digits and any of _.-"


def check_name(text: str, field: str) -> str:
    """Return the text if it can be part of the names of keys. Raises InvalidValue."""
    if not isinstance(text, str) or not _NAME.fullmatch(text):
        raise InvalidValue(field, quoted(text), _NAME_ACCEPTED)
    return text


class Addresses:
    """The names of the Redis keys of one set of limits."""

    def __init__(
        self, parts: Sequence[Part], *, prefix: str, tag: str | None, cluster: bool
    ) -> None:
        self._parts = parts
        self._labels = [each.label for each in parts]
        self._names = LimiterKeys(
            check_name(prefix, "prefix"), None if tag is None else check_name(tag, "tag")
        )
        self._cluster = cluster
        self._distinct = len(set(self._labels)) == len(self._labels)
        self._digest = hashlib.sha256("+".join(self._labels).encode()).hexdigest()[:16]

        # The endings of the names, where they differ only by one key for all limits.
        self._endings: list[str] = []
        if self._distinct and tag is None:
            unnamed = len(self._names.hash_tag(""))
            some = [*self.permits([""]), *self.states([""] * len(parts))]
            self._endings = [name[unnamed:] for name in some]

    def each(self, keys: Keys, limits: Sequence[int] | None = None) -> Sequence[str]:
        """Return the caller's key for each of those limits. Raises InvalidValue."""
        many = len(self._parts) if limits is None else len(limits)
        if isinstance(keys, str):
            _check_key(keys)
            if not self._distinct:
                self._check_duplicates([keys] * many, limits)
            return (keys,) * many
        if isinstance(keys, bytes) or not isinstance(keys, Sequence) or len(keys) != many:
            raise InvalidValue("keys", quoted(keys), f"one text, or {many} of them in a sequence")
        for key in keys:
            _check_key(key)
        if not self._distinct:
            self._check_duplicates(keys, limits)
        if self._cluster and self._names.tag is None:
            self._check_slots(keys)
        return keys

    def states(self, keys: Sequence[str], limits: Sequence[int] | None = None) -> list[str]:
        """Return the names of the states of those limits, each for its key."""
        labels = self._labels if limits is None else [self._labels[index] for index in limits]
        name = self._names.state
        return [name(label, key) for label, key in zip(labels, keys, strict=True)]

    def whole(self, keys: Keys) -> list[str]:
        """Return the names of the remembered permits for ``keys``, and of all states."""
        if self._endings and isinstance(keys, str):
            _check_key(keys)
            start = self._names.hash_tag(keys)
            return [start + ending for ending in self._endings]
        each_key = self.each(keys)
        return [*self.permits(each_key), *self.states(each_key)]

    def permits(self, keys: Sequence[str]) -> tuple[str, str]:
        """Return the names of the remembered permits for those keys."""
        return self._names.permits(self._digest, keys[0])

    def check_group(self, groups: Sequence[Sequence[str]]) -> None:
        """Raise InvalidValue unless one script may take permits for all of these keys."""
        if self._names.tag is None and len({key for keys in groups for key in keys}) > 1:
            raise InvalidValue(
                "requests", "they name several keys", "one key, or limiters with a tag"
            )

    def _check_duplicates(self, keys: Sequence[str], limits: Sequence[int] | None) -> None:
        states = self.states(keys, limits)
        if len(set(states)) < len(states):
            raise InvalidValue(
                "limits", "two of one kind, count and length for one key", "a name= of their own"
            )

    def _check_slots(self, keys: Sequence[str]) -> None:
        tags = (self._names.hash_tag(key).encode() for key in keys)
        if len({key_slot(tag) for tag in tags}) > 1:
            raise InvalidValue(
                "keys",
                "they lie in several slots of the cluster",
                "one key, or limiters with a tag",
            )


def _check_key(key: str) -> None:
    accepted = f"a text of 1 to {_LONGEST} bytes in UTF-8"
    if not isinstance(key, str):
        raise InvalidValue("key", kind_of(key), accepted)
    # A letter has four bytes at most: short keys need not be encoded to be judged.
    if not key or (len(key) > _LONGEST // 4 and len(key.encode(errors="replace")) > _LONGEST):
        raise InvalidValue("key", f"{len(key)} letters", accepted)
    if not key.isascii():
        try:
            key.encode()
        except UnicodeEncodeError:
            raise InvalidValue("key", "it has half a surrogate pair", accepted) from None
