"""Tells whether a script of ours touches only the keys it is given.

Knows the Lua that our scripts are written in, one statement on a line, and no more of it. What it
does not understand counts as built.
"""

from __future__ import annotations

import re

_KEYLESS = {"TIME"}
_ONLY_KEYS = {"DEL", "EXISTS", "UNLINK"}
"""Commands of which every argument is a key; of all others the first one is."""
_KINDS = ("key", "table", "row", "rows")
_ELEMENTS = {"table": "key", "rows": "row"}


def built_keys(script: str) -> list[str]:
    """Return the calls of commands on a key that cannot be traced back to KEYS.

    And whatever else fills a table or runs a text.
    """
    script = re.sub(r"'[^']*'", lambda text: re.sub(r"[(){}\[\],]", "_", text[0]), script)
    keys = _Keys(_statements(script))
    wrong = re.findall(r"\b(?:table\.\w+|rawset|loadstring)\b", script)
    for arguments in _calls(script, "redis.call", "redis.pcall"):
        command, named = arguments[0].strip("'"), arguments[1:]
        if command not in _ONLY_KEYS:
            named = named[:1]
        if command not in _KEYLESS and not (named and all(keys.is_key(each) for each in named)):
            wrong.append(f"{command} on {', '.join(named)}")
    return wrong


class _Keys:
    """What in a script is a key, a table of keys, or a table of rows that begin with a key.

    A name is one if everything is that is ever assigned, or passed, to that name anywhere: each is
    held for all of them until something speaks against it.
    """

    def __init__(self, statements: list[str]) -> None:
        self._getters: set[str] = set()
        self._values: dict[str, list[str]] = {}
        self._elements: dict[str, list[str]] = {}
        self._read(statements)
        for name, elements in list(self._elements.items()):
            for alias_of in self._values.get(name, []):
                self._elements.setdefault(alias_of, []).extend(elements)
        names = self._values.keys() | self._elements.keys()
        self._known = {(name, kind) for name in names for kind in _KINDS}
        while wrong := {each for each in self._known if not self._is_always(*each)}:
            self._known -= wrong

    def is_key(self, expression: str) -> bool:
        return self._is(expression, "key")

    def _is(self, expression: str, kind: str) -> bool:
        if (expression, kind) in self._known:
            return True
        if expression.startswith("each of "):
            of = {"key": "table", "row": "rows"}.get(kind, "")
            return self._is(expression.removeprefix("each of "), of)
        if kind == "key":
            return self._is_part(expression) or expression.partition("(")[0] in self._getters
        if kind == "table":
            unpacked = re.fullmatch(r"\{unpack\(KEYS(, \d+)?\)\}", expression)
            return expression == "KEYS" or unpacked is not None
        if kind == "row" and re.fullmatch(r"\{.+\}", expression):
            return self.is_key(_split(expression[1:-1])[0])
        return False

    def _is_part(self, expression: str) -> bool:
        """Whether an expression takes a key out of a table or a row."""
        unpacked = re.fullmatch(r"unpack\((\w+)\)", expression)
        if unpacked:
            return self._is(unpacked[1], "row")
        table, index = _indexed(expression)
        whole = index is not None and self._is(table, "table")
        return whole or (index == "1" and self._is(table, "row"))

    def _is_always(self, name: str, kind: str) -> bool:
        elements = self._elements.get(name, [])
        values = self._values.get(name, [])
        if kind in _ELEMENTS:
            values = [each for each in values if each != "{}"]
        elif elements:
            return False
        return all(self._is(each, kind) for each in values) and all(
            self._is(each, _ELEMENTS[kind]) for each in elements
        )

    def _read(self, statements: list[str]) -> None:
        whole = "\n".join(statements)
        for statement in statements:
            loop = re.fullmatch(r"for \w+, (\w+) in ipairs\((.+)\) do", statement)
            function = re.fullmatch(r"(?:local )?function (\w+)\((.*)\)", statement)
            assigned = re.fullmatch(r"(?:local )?([^'(]+?) = (.+)", statement)
            if loop:
                self._values.setdefault(loop[1], []).append(f"each of {loop[2]}")
            elif function:
                body = whole.split(statement, 1)[1].split("\nlocal function ", 1)[0]
                returned = re.findall(r"^return (.+)$", body.split("\nend", 1)[0], re.MULTILINE)
                if returned and all(re.fullmatch(r"KEYS\[[^\]]+\]", each) for each in returned):
                    self._getters.add(function[1])
                self._read_parameters(function[1], _split(function[2]), whole)
            elif assigned and not statement.startswith(("for ", "if ", "elseif ", "return ")):
                names = _split(assigned[1])
                values = _split(assigned[2])
                values += ["?"] * (len(names) - len(values))
                for name, value in zip(names, values, strict=False):
                    part, index = _indexed(name)
                    into = self._values if index is None else self._elements
                    into.setdefault(part, []).append(value)

    def _read_parameters(self, function: str, parameters: list[str], whole: str) -> None:
        """Take what is passed for what is assigned. A function nobody names is passed nothing."""
        others = re.findall(rf"^local (\w+) = .*\b{function}\b(?!\()", whole, re.MULTILINE)
        mentions = len(re.findall(rf"\b{function}\b", whole))
        calls = [call for name in (function, *others) for call in _calls(whole, name)]
        for number, name in enumerate(parameters):
            passed = [call[number] if number < len(call) else "?" for call in calls]
            self._values.setdefault(name, []).extend(passed or ["?"] * (mentions > 1))


def _statements(script: str) -> list[str]:
    found: list[str] = []
    depth = 0
    for line in script.splitlines():
        text = line.strip()
        if not text:
            continue
        if depth:
            found[-1] += ("" if found[-1].endswith(("(", "{")) else " ") + text
        else:
            found.append(text)
        depth += sum(text.count(each) for each in "({[") - sum(text.count(each) for each in ")}]")
    return found


def _calls(script: str, *functions: str) -> list[list[str]]:
    found = []
    for function in functions:
        starts = re.finditer(rf"(?<![\w.])(?<!function ){re.escape(function)}\(", script)
        found += [_split(_balanced(script[start.end() :])) for start in starts]
    return found


def _balanced(text: str) -> str:
    depth = 1
    for place, letter in enumerate(text):
        depth += (letter in "({[") - (letter in ")}]")
        if depth == 0:
            return text[:place]
    raise AssertionError(f"nothing closes {text[:40]}")


def _split(text: str) -> list[str]:
    """Split at the commas outside of all brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "({[") - (letter in ")}]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [" ".join(part.split()) for part in parts]


def _indexed(expression: str) -> tuple[str, str | None]:
    """Return a table's name and the index where an expression is one element of it."""
    match = re.fullmatch(r"(\w+)\[(.+)\]", expression)
    if match is None or (_balanced(match[2] + "]") != match[2]):
        return expression, None
    return match[1], match[2]
