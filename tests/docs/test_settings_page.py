"""The page of the settings is what the code says of them: read as it lies in the repository.

``python -m tests.docs.test_settings_page`` writes it anew.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dispatcher import ChannelSettings, Settings
from dispatcher.channel import ScopeKind

PAGE = Path(__file__).parents[2] / "docs/reference/settings.md"
HEAD = """# Settings

Each setting comes from the first that has it: an argument of `Settings.load`, the environment, \
`dispatcher.toml`, the default, which stands below after what it takes. In the environment a \
setting is written in capitals after `DISPATCHER_`, with two underscores before the name within a \
table: \
`DISPATCHER_CHANNELS__SMS__TRANSPORT=file`. A length is a number of seconds, or a text such as \
`"30 days"`; a list in an environment variable has commas between its entries.
"""
TAIL = """## In Python

::: dispatcher.Settings
    options:
      members: [load, environment, queues, queue_of, stop_grace]

::: dispatcher.ChannelSettings
    options:
      members: []
"""
PARTS: dict[str, tuple[type[BaseModel], str]] = {
    "At the top": (Settings, "`dispatcher.Settings`, which `Settings.load()` reads."),
    "Of a channel": (ChannelSettings, "`[channels.NAME]`, one `dispatcher.ChannelSettings` each."),
    "Of a kind of scope": (ScopeKind, "`[scopes.NAME]`, one `ScopeKind` each."),
}
_TYPES = {"string": "text", "boolean": "true or false", "integer": "number", "number": "number",
          "array": "list", "object": "table"}  # fmt: skip
_UNITS = {"day": 86_400, "hour": 3_600, "minute": 60, "second": 1}


def meanings(model: type[BaseModel]) -> dict[str, str]:
    [body] = ast.parse(inspect.getsource(model)).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(text, ast.Expr), f"{field.target.id} has no docstring"
            assert isinstance(text.value, ast.Constant)
            plain = re.sub(r":\w+:(?=`)", "", str(text.value.value)).replace("``", "`")
            found[field.target.id] = " ".join(plain.split())
    return found


def takes(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        schema = next(each for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{word}`" for word in schema["enum"])
    if schema.get("format") == "duration":
        return "length"
    kind = _TYPES.get(schema.get("type", "string"), "text")
    return kind if "minimum" not in schema else f"{schema['minimum']:,} to {schema['maximum']:,}"


def shown(default: object) -> str:
    match default:
        case None | "" | () | []:
            return ""
        case bool():
            return f"`{str(default).lower()}`"
        case timedelta():
            seconds = default.total_seconds()
            for unit, length in _UNITS.items():
                if seconds % length == 0:
                    many = int(seconds / length)
                    return f"`{many} {unit}{'s' * (many != 1)}`"
            return f"`{seconds:g}`"
        case tuple():
            return ", ".join(f"`{entry}`" for entry in default)
        case _:
            return f"`{default}`"


def lines() -> Iterator[str]:
    yield HEAD
    for title, (model, told) in PARTS.items():
        yield f"## {title}\n\n{told}\n"
        schema, meaning = model.model_json_schema()["properties"], meanings(model)
        for name, field in model.model_fields.items():
            default = "needed" if field.is_required() else ""
            if not default and field.default_factory is None:
                default = shown(field.default)
            kind = "; ".join(filter(None, [takes(schema[name]), default]))
            yield f"- **`{name}`** ({kind}): {meaning[name]}"
        yield ""
    yield TAIL


def page() -> str:
    return "\n".join(lines())


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == page(), "python -m tests.docs.test_settings_page"


if __name__ == "__main__":
    PAGE.write_text(page())
