"""Cool-down: closed until some time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dispatcher.limiters.addresses import check_name
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

    def __post_init__(self) -> None:
        if self.name is not None:
            check_name(self.name, "name")

    @property
    def most(self) -> int:
        """Nothing is counted."""
        return 0

    @property
    def label(self) -> str:
        """Its name in Redis keys."""
        return self.kind if self.name is None else f"{self.kind}={self.name}"

    def words(self, now_ms: int, further: int = 0) -> Sequence[int]:  # noqa: ARG002 - for aligned windows
        """Return the arguments of its part of the scripts."""
        return ()

    def __str__(self) -> str:
        return "cool-down"
