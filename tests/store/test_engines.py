"""What differs between databases lies in ``store/engines`` and nowhere else in the package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import dispatcher
from dispatcher.errors import StoreUnavailable
from dispatcher.store.engines.mariadb import check_version

PACKAGE = Path(dispatcher.__file__).parent
ENGINES = PACKAGE / "store" / "engines"
DJANGO = PACKAGE / "django"
"""Translates Django's names and settings of databases, which are per kind, into URLs."""
KINDS = frozenset({"sqlite", "postgresql", "postgres", "mysql", "mariadb"})
ASKS = frozenset({"dialect", "is_mariadb", "get_backend_name", "get_dialect"})


def questions(code: str) -> Iterator[str]:
    """Yield where code asks for the kind of a database."""
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Attribute(attr=name) if name in ASKS:
                yield f"line {node.lineno}: .{name}"
            case ast.Constant(value=str(text)) if text in KINDS:
                yield f"line {node.lineno}: {text!r}"
            case ast.ImportFrom(module=str(name)) if name.startswith("sqlalchemy.dialects"):
                yield f"line {node.lineno}: import of {name}"


def test_no_module_but_the_engines_asks_for_the_kind_of_a_database() -> None:
    exempt = {ENGINES, DJANGO}
    files = [each for each in PACKAGE.rglob("*.py") if exempt.isdisjoint(each.parents)]
    texts = {str(each.relative_to(PACKAGE)): each.read_text() for each in files}
    may_ask = [name for name, text in texts.items() if any(word in text for word in ASKS | KINDS)]
    found = {name: [*questions(texts[name])] for name in may_ask}
    assert {name: asked for name, asked in found.items() if asked} == {}


def test_a_server_of_mysql_is_refused_with_what_to_use_instead() -> None:
    check_version("10.11.19-MariaDB-0+deb12u1")
    with pytest.raises(StoreUnavailable, match=r"MySQL 8\.4\.6") as refused:
        check_version("8.4.6")
    assert refused.value.refused
    assert "MariaDB" in refused.value.remedy
