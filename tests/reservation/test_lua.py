"""The contract of a script names each key that it is given, and it touches no others."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.client import Pipeline

import dispatcher
from dispatcher.redis.scripts import Call, Script, composed, replies_of, source
from tests.support.limiters import exported_limits
from tests.support.servers import RedisServer

SHARED = {
    "reservation/clock", "reservation/rule", "limiters/limits",
    "limiters/limits_members",
}  # fmt: skip
"""Included by others; no scripts of their own."""
COMPOSED = [f"limiters/limits_{name}" for name in ("acquire", "give_back")]
ROOT = Path(dispatcher.__file__).parent
BUILT = re.compile(r"redis\.p?call\(\s*'\w+',\s*(?:'|ARGV|[^,()]*\.\.)")
"""A command whose key is a text, an argument, or put together."""
NAMES = sorted(f"{path.parts[-3]}/{path.stem}" for path in ROOT.glob("*/lua/*.lua"))


def text(name: str) -> str:
    room, file = name.split("/")
    return (ROOT / room / "lua" / f"{file}.lua").read_text(encoding="utf-8")


def code(name: str) -> str:
    """Return a script with its includes and without its comments."""
    return re.sub(r"--.*", "", source(name))


def contract(name: str) -> str:
    lines = text(name).splitlines()
    end = next((n for n, line in enumerate(lines) if not line.startswith("--")), len(lines))
    return "\n".join(lines[:end])


PARTS = [
    name for name in NAMES if re.search(r"^-- Included\. State ", contract(name), re.MULTILINE)
]
"""The parts that the scripts of limiters are composed of, by their heads."""
SCRIPTS = [name for name in NAMES if name not in {*SHARED, *PARTS}]


def test_each_part_of_the_scripts_of_limiters_is_the_kind_of_an_exported_class() -> None:
    assert sorted(f"limiters/{limit.kind}" for limit in exported_limits()) == PARTS


@pytest.mark.parametrize("name", COMPOSED)
def test_a_composed_script_holds_its_parts_and_builds_no_key_names(name: str) -> None:
    kinds = tuple(part.partition("/")[2] for part in PARTS)
    whole = composed(name, kinds)
    assert all(f"\nkinds.{kind} = " in whole for kind in kinds)
    assert "@parts" not in whole
    assert not BUILT.search(re.sub(r"--.*", "", whole))
    assert "kinds.gcra" not in composed(name, ("fixed_window",))


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_contract_names_every_key_and_argument_that_is_used(name: str) -> None:
    for array in ("KEYS", "ARGV"):
        used = {int(n) for n in re.findall(rf"{array}\[(\d+)\]", code(name))}
        part = re.search(
            rf"^-- {array} (.*?)(?=^-- (?:KEYS|ARGV|Reply)|^--$|\Z)",
            contract(name),
            re.MULTILINE | re.DOTALL,
        )
        documented = (
            {
                int(number)
                for numbers in re.findall(r"(?<![\w.])((?:\d+, )*\d+)(?:\.\.\.)? ", part[1])
                for number in numbers.split(", ")
            }
            if part
            else set()
        )
        assert used <= documented, f"{array} {sorted(used - documented)}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_whole_and_builds_no_key_names(name: str) -> None:
    """That it crosses no hash slots, the tests on a cluster say."""
    assert "@include" not in source(name)
    assert not BUILT.search(code(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_script_compares_no_milliseconds_as_text(name: str) -> None:
    """Lua writes 1e+15 for large numbers, so a number becomes text only through a format."""
    assert not re.search(r"tostring\(", code(name))


# Each call of a script is done once, also where the server knows the script for some only.


CALLS: list[Call] = [([f"count {number}"], [number]) for number in range(4)]


COUNTING = Script.of("return {tonumber(ARGV[1]), redis.call('INCR', KEYS[1])}")


@pytest.fixture
def client(redis_server: RedisServer) -> redis.Redis:
    return redis_server.client()


def between_the_calls(monkeypatch: pytest.MonkeyPatch, after: int, *command: Any) -> None:
    """Let another client send a command when the first of the pipelined calls are done."""
    real: Callable[..., list[Any]] = Pipeline.execute

    def execute(self: Pipeline, raise_on_error: bool = True) -> list[Any]:
        monkeypatch.undo()
        stack = self.command_stack
        stack.insert(after, (command, {}))
        replies = real(self, raise_on_error)
        del replies[after]
        return replies

    monkeypatch.setattr(Pipeline, "execute", execute)


@pytest.mark.parametrize("after", range(len(CALLS) + 1))
@pytest.mark.parametrize("forgets", [True, False], ids=["forgotten", "learnt"])
def test_pipelined_calls_are_done_once_and_answered_in_order(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch, after: int, forgets: bool
) -> None:
    client.script_flush()
    command = ("SCRIPT", "FLUSH") if forgets else ("SCRIPT", "LOAD", COUNTING.text)
    if forgets:
        client.script_load(COUNTING.text)
    between_the_calls(monkeypatch, after, *command)
    assert replies_of(client, COUNTING, CALLS) == [[number, 1] for number in range(len(CALLS))]


def test_another_error_of_a_call_is_raised(client: redis.Redis) -> None:
    client.set("count 2", "no number")
    with pytest.raises(redis.ResponseError, match="not an integer"):
        replies_of(client, COUNTING, CALLS)


# What scripts are told, in the form in which it is sent.


SIGNALLED = """
import signal
import hiredis
from dispatcher.message import new_id
from dispatcher.quota import Quota
from dispatcher.redis.keys import ShardKeys
from dispatcher.redis.scripts import Script, replies_of
from dispatcher.reservation.booking import BookingRequest, Leg
from dispatcher.reservation.booking import Terms
from dispatcher.reservation.encoding import Rules
from dispatcher.scope import OWN_SCOPE, own_scope

def stop(*_):
    raise TimeoutError

terms = Terms((own_scope("ada"),))
rules = Rules({OWN_SCOPE: [Quota(1, 60_000)]})
leg = Leg(ShardKeys("test", 0), terms, terms.scopes, rules)
asked = [(leg, BookingRequest(new_id(), terms, 10**12, 10**12 + 1))] * 5_000
names, words = rules.reserve_call(asked, under_way_ms=60_000)

class Client:
    def execute_command(self, *command):
        hiredis.pack_command(command)

signal.signal(signal.SIGALRM, stop)
for _ in range(50):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while True:
            replies_of(Client(), Script("", "sha"), [(names, [*words, 1])])
    except TimeoutError:
        pass
"""


def test_a_signal_that_raises_while_words_are_packed_does_not_end_the_process() -> None:
    child = subprocess.run([sys.executable, "-c", SIGNALLED], check=False, timeout=60)
    assert child.returncode == 0
