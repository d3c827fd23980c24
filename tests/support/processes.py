"""Processes forked from one that has imported the code and opened nothing.

To import it takes a second of a core; here each process of a test run spends that once.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from pkgutil import walk_packages
from subprocess import CompletedProcess, TimeoutExpired
from tempfile import TemporaryDirectory
from typing import Any

from dispatcher import cli

_SECONDS = 60
_PRELOADED = [
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.thread",
    *(module.name for module in walk_packages(cli.__path__, "dispatcher.cli.")),
    "dispatcher.client",
    "dispatcher.web",
    "fastapi.testclient",
    "dispatcher.celery.consumer",
    "dispatcher.celery.tasks",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "psycopg",
    "pymysql",
    "pytest",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "sqlalchemy.orm",
    "tests.support.house",
    "tests.support.ledger",
]


def ran(*words: str | Path, check: bool = False, **more: Any) -> CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=check, **more)


def pytest_in(
    folder: Path, *options: str, start: Sequence[str | Path] = (sys.executable, "-m", "pytest")
) -> CompletedProcess[str]:
    """Run pytest in a folder, with the plugin of the distribution."""
    heavy = ("schemathesis", "hypothesispytest", "anyio")  # half of a start and more goes there
    light = ("-q", *(f"-pno:{name}" for name in heavy))
    return ran(*start, *light, "--rootdir", folder, *options, ".", cwd=folder)


def forking() -> ForkServerContext:
    """Return what makes processes that share no connection with this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return context


def in_processes(count: int, work: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Run ``work(gate, number, *arguments)`` in that many fresh processes; return the answers.

    ``gate`` is a barrier for all of them.
    """
    context = forking()
    gate, answers = context.Barrier(count), context.Queue()
    processes = [
        context.Process(target=_run, args=(work, gate, number, answers, arguments), daemon=True)
        for number in range(count)
    ]
    for process in processes:
        process.start()
    answers_by: dict[int, Any] = {}
    try:
        while len(answers_by) < count:
            number, answer = answers.get(timeout=_SECONDS)
            answers_by[number] = answer
    finally:
        for process in processes:
            if len(answers_by) < count:  # one hangs: no waiting for each of the others
                process.kill()
            process.join(_SECONDS)
    failed = [answer for answer in answers_by.values() if isinstance(answer, Exception)]
    if failed:
        raise failed[0]
    return [answers_by[number] for number in range(count)]


def _run(work: Any, gate: Any, number: int, answers: Any, arguments: tuple[Any, ...]) -> None:
    try:
        answers.put((number, work(gate, number, *arguments)))
    except Exception as error:
        answers.put((number, RuntimeError(repr(error))))
        raise


def command_line(
    arguments: Sequence[str],
    log: Path,
    folder: Path,
    env: Mapping[str, str],
    *,
    errors: Path | None = None,
) -> BaseProcess:
    """Start ``python -m dispatcher …``, but for its imports; return the process.

    It leads a session of its own, works in ``folder`` and writes to the end of ``log``, what it
    says to standard error to that of ``errors``, if that is given.
    """
    passed = (list(arguments), log, errors or log, folder, dict(env))
    process = forking().Process(target=_command_line, args=passed, daemon=True)
    process.start()
    return process


def run_command(
    arguments: Sequence[str], folder: Path, env: Mapping[str, str], seconds: float
) -> CompletedProcess[str]:
    """Run it to its end; return what came of it. Fails if it takes longer."""
    with TemporaryDirectory() as said:
        out, errors = Path(said, "out"), Path(said, "errors")
        process = command_line(arguments, out, folder, env, errors=errors)
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            raise TimeoutExpired(list(arguments), seconds)
        return CompletedProcess(
            list(arguments), process.exitcode, out.read_text(), errors.read_text()
        )


def _command_line(
    arguments: list[str], log: Path, errors: Path, folder: Path, env: dict[str, str]
) -> None:
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    for number, path in enumerate((log, errors), start=1):
        with path.open("ab") as end:
            os.dup2(end.fileno(), number)
    sys.argv[1:] = arguments
    runpy.run_module("dispatcher", run_name="__main__", alter_sys=True)
