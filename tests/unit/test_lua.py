"""Every script opens with its contract and touches only the keys it is given."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from dispatcher.lua import source

SHARED = {"rule"}  # included by others; no script of its own
NAMES = sorted(
    entry.name.removesuffix(".lua")
    for entry in files("dispatcher.lua").iterdir()
    if entry.name.endswith(".lua")
)
SCRIPTS = [name for name in NAMES if name not in SHARED]

_CALL = re.compile(r"redis\.p?call\(\s*'(\w+)'\s*(?:,\s*([^,)]+(?:\([^)]*\))?))?")
_KEYLESS = {"TIME"}


def text(name: str) -> str:
    return (files("dispatcher.lua") / f"{name}.lua").read_text(encoding="utf-8")


def code(name: str) -> str:
    """Return a script with its includes and without its comments."""
    return re.sub(r"--.*", "", source(name))


def contract(name: str) -> str:
    lines = text(name).splitlines()
    end = next((n for n, line in enumerate(lines) if not line.startswith("--")), len(lines))
    return "\n".join(lines[:end])


def test_there_are_scripts() -> None:
    assert {"reserve", "release", "next_slot", "fence", "restore"} <= set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_opens_with_its_contract(name: str) -> None:
    first, *rest = contract(name).splitlines()
    assert re.match(r"-- [A-Z].{10,}", first), "a sentence that says what it is for"
    comment = "\n".join(rest)
    assert re.search(r"^-- KEYS +\w", comment, re.MULTILINE)
    if "ARGV" in code(name):
        assert re.search(r"^-- ARGV +\w", comment, re.MULTILINE)
    assert re.search(r"^-- Reply ", comment, re.MULTILINE)


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
            {int(n) for n in re.findall(r"(?<![\w.])(\d+)(?:\.\.\.)? ", part[1])} if part else set()
        )
        assert used <= documented, f"{array} {sorted(used - documented)}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_builds_no_key_names(name: str) -> None:
    script = code(name)
    assigned = dict(_assignments(script))
    getters = re.findall(r"function (\w+)\([^)]*\)\s+return KEYS\[", script)
    for command, argument in _CALL.findall(script):
        if command in _KEYLESS:
            continue
        key = argument.strip()
        given = key.startswith("KEYS[") or assigned.get(key, "").startswith("KEYS[")
        given = given or key.split("(")[0] in getters
        passed = re.search(rf"function [\w.]*\([^)]*\b{re.escape(key)}\b", script) is not None
        assert given or passed, f"{command} on {key}"


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_whole_after_its_includes(name: str) -> None:
    assert "@include" not in source(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_script_compares_no_milliseconds_as_text(name: str) -> None:
    """Lua writes 1e+15 for large numbers, so a number becomes text only through a format."""
    assert not re.search(r"tostring\(", code(name))


def _assignments(script: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for names, values in re.findall(r"local ([\w, ]+?) = ([^\n]+)", script):
        pairs += zip(
            (name.strip() for name in names.split(",")),
            (value.strip() for value in values.split(",")),
            strict=False,
        )
    return pairs
