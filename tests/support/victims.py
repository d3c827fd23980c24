"""Processes that stop at a chosen line of the dispatcher, to be killed there."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from tests.support.processes import forking

_SECONDS = 60
_STANDS = "stands"


class Line:
    """A process's end of its line to the test."""

    def __init__(self, connection: Connection, gate: Any) -> None:
        self._connection = connection
        self._gate = gate

    def begin(self) -> None:
        self._gate.wait(_SECONDS)

    def stand(self) -> None:
        """Tell the test, and go no further; whoever outlives the test ends."""
        self._connection.send(_STANDS)
        self._connection.recv()


@dataclass(frozen=True, slots=True)
class Victim:
    """One process and the test's end of its line."""

    process: ForkServerProcess
    connection: Connection

    def kill(self) -> None:
        """End it with SIGKILL once it stands where it is to die."""
        assert self.connection.poll(_SECONDS), "it did not come to where it is to stand"
        assert self.connection.recv() == _STANDS
        self.process.kill()
        self.process.join(_SECONDS)
        assert self.process.exitcode == -signal.SIGKILL

    def join(self) -> None:
        self.process.join(_SECONDS)
        assert self.process.exitcode == 0


@contextmanager
def side_by_side(works: Sequence[tuple[Any, ...]]) -> Iterator[list[Victim]]:
    """Run ``work(line, *arguments)`` in a fresh process for each ``(work, *arguments)``."""
    context = forking()
    gate = context.Barrier(len(works))
    started: list[Victim] = []
    try:
        for work in works:
            ours, theirs = context.Pipe()
            process = context.Process(target=_run, args=(theirs, gate, *work), daemon=True)
            process.start()
            theirs.close()
            started.append(Victim(process, ours))
        yield started
    finally:
        for victim in started:
            victim.connection.close()
            victim.process.kill()
            victim.process.join(_SECONDS)


def stop(
    part: Any,
    method: str,
    line: Line,
    *,
    before: bool = False,
    when: Callable[[tuple[Any, ...], Any], bool] | None = None,
) -> None:
    """Let this process stand right before or after a call of ``method``.

    After a call it stands if ``when``, where it is given, says so of arguments and answer.
    """
    real = getattr(part, method)

    def call(*given: Any, **named: Any) -> Any:
        if before:
            line.stand()
        answer = real(*given, **named)
        if not before and (when is None or when(given, answer)):
            line.stand()
        return answer

    setattr(part, method, call)


def _run(connection: Connection, gate: Any, work: Any, *arguments: Any) -> None:
    work(Line(connection, gate), *arguments)
