"""Work done by several processes at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

_SECONDS = 60
_PRELOADED = ["dispatcher", "tests.support.house"]


def in_processes(count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run ``work(gate, number, *arguments)`` in that many fresh processes; return the answers.

    ``gate`` is a barrier for all of them. The processes share no connection with this one: they
    are forked from a server that has imported the code and opened nothing.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    gate, answers = context.Barrier(count), context.Queue()
    processes = [
        context.Process(target=_run, args=(work, gate, number, answers, arguments), daemon=True)
        for number in range(count)
    ]
    for process in processes:
        process.start()
    try:
        found = dict(answers.get(timeout=_SECONDS) for _ in processes)
    finally:
        for process in processes:
            process.join(_SECONDS)
    failed = [each for each in found.values() if isinstance(each, Exception)]
    if failed:
        raise failed[0]
    return [found[number] for number in range(count)]


def _run(work: Any, gate: Any, number: int, answers: Any, arguments: tuple[Any, ...]) -> None:
    try:
        answers.put((number, work(gate, number, *arguments)))
    except Exception as error:
        answers.put((number, RuntimeError(repr(error))))
        raise
