"""What the help shows as examples can be typed, and what it pipes into jq is there."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from dispatcher.cli import every_command
from tests.cli.conftest import Run
from tests.support.house import House

SHELL = re.compile(r"\s+[|<>]\s+")
ID = "0199…"


def commands(group: Any = None) -> Iterator[Any]:
    group = group or every_command()
    for each in group.commands.values():
        if hasattr(each, "commands"):
            yield from commands(each)
        else:
            yield each


def examples(command: Any) -> list[str]:
    found = re.findall(r"^\s*\$ (.+)$", command.epilog or "", re.MULTILINE)
    return [each.strip() for each in found]


EVERY = [line for command in commands() for line in examples(command)]


def test_every_command_has_examples() -> None:
    assert [command.name for command in commands() if not examples(command)] == []


@pytest.mark.parametrize("line", EVERY)
def test_an_example_can_be_typed(line: str) -> None:
    program, *words = shlex.split(SHELL.split(line)[0])
    assert program == "dispatcher"
    group: Any = every_command()
    while hasattr(group, "commands"):
        group = group.commands[words.pop(0)]
    with group.make_context(group.name, words) as context:
        assert context.args == [] or context.allow_extra_args


@pytest.mark.parametrize("line", [each for each in EVERY if "| jq " in each])
def test_a_filter_of_an_example_finds_something_in_each_object(
    house: House, run: Run, line: str
) -> None:
    message = house.submit("ada", send_in=timedelta(hours=1))
    house.dispatcher.suppress("ben")
    typed, jq = line.replace(ID, str(message.id)).split(" | jq ")
    found = re.fullmatch(r"(?:-r )?((?:\.\w+)+)", jq)
    assert found is not None, "a path of names is all that is read here"
    ran = run(*shlex.split(typed)[1:])
    assert ran.code == 0, ran.err
    objects = list(values(ran.out))
    assert objects
    for each in objects:
        for name in found[1].split(".")[1:]:
            assert name in each
            each = each[name]  # noqa: PLW2901 - one name further in


def values(text: str) -> Iterator[Any]:
    """Yield the JSON values that stand behind one another, as jq reads them."""
    rest = text.strip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        yield value
        rest = rest[end:].strip()
