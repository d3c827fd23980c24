"""Cool-down: closed until some time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dispatcher.limiters.algorithm import Algorithm


@dataclass(frozen=True)
class CoolDown(Algorithm):
    """Gives every permit unless it is closed, and then none until that time is over.

    ``close`` closes a key for all processes at once, for instance when a provider answers
    ``Retry-After``. Closed twice, the later time holds; ``reset`` opens it. It counts nothing:
    ``limit`` and ``remaining`` are 0. Raises InvalidValue.
    """

    name: str | None = None

    kind: ClassVar[str] = "cool_down"
    knows_permits: ClassVar[bool] = True
    closes: ClassVar[bool] = True

    @property
    def most(self) -> int:
        """Nothing is counted."""
        return 0

    @property
    def words(self) -> Sequence[int]:
        """None."""
        return ()

    def __str__(self) -> str:
        return "cool-down"
