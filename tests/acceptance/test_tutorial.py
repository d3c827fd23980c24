"""The tutorial works as it is written: each of its commands is run, and answers what it says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.environment import child_environment
from tests.support.processes import ran
from tests.support.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs/tutorial.md"
_BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)")
_SECONDS = 60


class Block(NamedTuple):
    """A block of code on the page. ``title`` is a file's name, or the shell it is typed into."""

    language: str
    title: str
    text: str


def page() -> list[Block]:
    return [Block(*block) for block in _BLOCK.findall(PAGE.read_text())]


@pytest.mark.long
def test_every_command_of_the_tutorial_does_what_the_page_says(folder: Path) -> None:
    blocks = page()
    assert len(blocks) == PAGE.read_text().count("```") / 2, "every block is read"
    files = {block.title: block.text for block in blocks if block.language in {"toml", "python"}}
    for name, text in files.items():
        (folder / name).write_text(text)
    [first_shell] = [block.text for block in blocks if block.title == "first shell"]
    typed = [block for block in blocks if block.language in {"sh", "text"} and not block.title]
    with up(first_shell, folder):
        for command, expected in zip(typed[::2], typed[1::2], strict=True):
            assert (command.language, expected.language) == ("sh", "text")
            words = ("bash", "-euo", "pipefail", "-c", command.text)
            answered = ran(*words, cwd=folder, env=environment(), timeout=_SECONDS)
            assert answered.returncode == 0, answered.stderr
            assert fits(expected.text, answered.stdout), answered


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return child_environment() | {"PATH": path}


@contextmanager
def up(command: str, folder: Path) -> Iterator[None]:
    log = folder / "first shell"
    with log.open("w") as output:
        shell = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder, env=environment(), stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    try:
        wait_until(lambda: "Ctrl-C" in log.read_text(), _SECONDS)
        yield
    finally:
        os.killpg(shell.pid, signal.SIGINT)
        code = shell.wait(_SECONDS)
    assert code == 0, log.read_text()


def fits(expected: str, answered: str) -> bool:
    """Whether the answer has the lines in their order; an ellipsis stands for anything.

    One instant stands for any other, and one id for any other, the same one wherever it is named.
    """
    left = iter(told_alike(answered).splitlines())
    return all(
        any(re.match(".*".join(map(re.escape, line.split("…"))), text) for text in left)
        for line in told_alike(expected).splitlines()
    )


def told_alike(text: str) -> str:
    """Return the text with its ids numbered in their order, and no instants."""
    ids = list(dict.fromkeys(_ID.findall(text)))
    numbered = _ID.sub(lambda match: f"<id {ids.index(match[0])}>", text)
    return _INSTANT.sub("<instant>", numbered)
