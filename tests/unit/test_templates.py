"""Templates: rendered into bodies, escaped where they are HTML, and bounded in all they take."""

from __future__ import annotations

import json
import pickle
import re
import sys
import time
import tomllib
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Channel, Draft, InvalidDraft, InvalidSettings, Settings
from dispatcher.templating import Templates

CANARY = "canary-4711"
REMINDER = {
    "subject": "Hello {{ name }}",
    "html": "<p>{{ name }}</p>",
    "priority": 3,
    "parts": [
        {"text": "{% for each in items %}{{ loop.index }} of {{ loop.length }} {% endfor %}"}
    ],
}


def templates(**channel: Any) -> Templates:
    known = Channel(transport="memory", **channel)
    return Templates({"email": known}, max_bytes=10_000, max_depth=32)


def filled(found: Templates, template: str = "one", **data: Any) -> Any:
    return found.fill(Draft(channel="email", recipient="ada", template=template, data=data)).body


def test_texts_are_rendered_and_html_is_escaped() -> None:
    found = templates(templates={"one": REMINDER})
    assert filled(found, name="<Ada> & co", items=["a", "b"]) == {
        "subject": "Hello <Ada> & co",
        "html": "<p>&lt;Ada&gt; &amp; co</p>",
        "priority": 3,
        "parts": [{"text": "1 of 2 2 of 2 "}],
    }


def test_a_folder_holds_a_file_for_each_text_and_what_they_share(tmp_path: Path) -> None:
    for name, text in {
        "welcome.subject": "Hello {{ name }}\n",
        "welcome.html": "{% extends '_frame.html' %}{% block body %}{{ name }}{% endblock %}",
        "_frame.html": "<body>{% block body %}{% endblock %}</body>",
        "README": "no template",
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = templates(templates_dir=tmp_path)
    assert filled(found, "welcome", name="<b>") == {
        "subject": "Hello <b>",
        "html": "<body>&lt;b&gt;</body>",
    }
    with pytest.raises(InvalidDraft, match=r"one of its templates: welcome$"):
        filled(found, "frame")


def test_a_template_that_is_in_both_places_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.text").write_text("x", encoding="utf-8")
    with pytest.raises(InvalidSettings, match="'one' already") as caught:
        filled(templates(templates={"one": REMINDER}, templates_dir=tmp_path))
    assert caught.value.field == "channels.email.templates_dir"
    with pytest.raises(InvalidSettings, match="FileNotFoundError"):
        filled(templates(templates_dir=tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ name }}", "needs name"),
        ("{{ given.more }}", "needs a value that is not there"),
        ("{{ given[secret] }}", "needs a value that is not there"),
        ("{{ secret + 1 }}", "cannot be rendered (TypeError)"),
        ("{{ ''.__class__ }}", "cannot be rendered (SecurityError)"),
        ("{% include 'other' %}", "cannot be rendered (TypeError)"),
    ],
)
def test_data_that_does_not_fit_is_refused_by_the_names_of_the_template(
    source: str, problem: str
) -> None:
    found = templates(templates={"one": {"text": source}})
    with pytest.raises(InvalidDraft) as caught:
        filled(found, secret=CANARY, given={CANARY[:3]: 1})
    error = caught.value
    assert (error.field, error.problem) == ("data", f"channels.email.templates.one.text {problem}")
    assert CANARY not in repr(pickle.loads(pickle.dumps(error)).__dict__)  # noqa: S301 - our own
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


GROWING = "{{% set n = namespace(s='x') %}}{{% for a in range(999) %}}{}{{% endfor %}}"
HUGE = {
    "loops": "{% for a in xs %}" * 3 + "{% endfor %}" * 3,
    "a range": "{% for a in range(10 ** 9) %}{% endfor %}",
    "a product": "{{ 'x' * 10 ** 9 }}",
    "a list": "{{ 10 ** 9 * xs }}",
    "a power": "{{ 10 ** (10 ** 10) }}",
    "a sum": GROWING.format("{% set n.s = n.s + n.s %}"),
    "texts in a row": GROWING.format("{% set n.s = n.s ~ n.s %}"),
    "a block": GROWING.format("{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}"),
    "calls": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}"
    ),
    "its output": "{% for a in range(5000) %}xxxx{% endfor %}",
}


STEPS = [
    "{{ 'x' | center(n) }}", "{{ ['x'] | map('center', width=n) | list }}",
    "{{ 'a' | indent(n, true) }}",
    "{{ a | indent(5000) }}", "{{ a | indent(a, true) }}", "{{ a | wordwrap(1, true, a) }}",
    "{{ [1] | batch(n, 0) | list | length }}", "{{ [1] | slice(n) | list | length }}",
    "{{ a | replace('x', a) }}", "{{ a | join(a) }}", "{{ a.join(a) }}", "{{ a.replace('x', a) }}",
    "{{ 'x'.center(n) }}", "{{ 'x'.ljust(n) }}", "{{ 'x'.rjust(n) }}", "{{ 'x'.zfill(n) }}",
    "{{ '\t'.expandtabs(n) }}", "{{ '%*d' | format(n, 1) }}", "{{ '%*d' % (n, 1) }}",
    "{{ '%.*f' % (n, 1) }}", "{{ '{:>{n}}'.format(1, n=n) }}", "{{ wide % 1 }}",
    "{{ '{:{}}'.format(1, n) }}", "{{ '{n:.{n}}'.format_map({'n': n}) }}",
    "{{ wide | format(1) }}", "{{ broad.format(1) }}", "{{ '{0:{1}}'.format(1, n) }}",
]  # fmt: skip


@pytest.mark.parametrize("source", STEPS)
def test_no_single_step_makes_more_than_a_body_may_hold(source: str) -> None:
    """A number or a text of the data decides about a width, a separator or a replacement."""
    found = templates(templates={"one": {"text": source}})
    data: dict[str, Any] = {
        "n": 10**7,
        "a": "x\n" * 2_500,
        "wide": "%9999999d",
        "broad": "{:>9999999}",
    }
    tracemalloc.start()
    try:
        with pytest.raises(InvalidDraft, match="takes more than 20000 steps or 10000 characters"):
            filled(found, **data)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'x' | center(5) }}", "  x  "),
        ("{{ 'a\nb' | indent }}", "a\n    b"),
        ("{{ 'a\nb' | indent('> ', true) }}", "> a\n> b"),
        ("{{ [1, 2, 3] | join(', ') }}", "1, 2, 3"),
        ("{{ [{'n': 1}, {'n': 2}] | join('-', attribute='n') }}", "1-2"),
        ("{{ 'aXbX' | replace('X', '_', 1) }}", "a_bX"),
        ("{{ 12345678901 | replace(1, 'one') }}", "one234567890one"),
        ("{{ ', '.join(['a', 'b']) }}", "a, b"),
        ("{{ 'x'.zfill(3) }}", "00x"),
        ("{{ '%d of %08.2f, order 49151123456789' | format(99999999, 7) }}",
         "99999999 of 00007.00, order 49151123456789"),
        ("{{ '%(n)s, 100%%' % {'n': 49151123456789} }}", "49151123456789, 100%"),
        ("{{ '{:,} to {who} {n:>{w}}'.format(49151123456789, who='a', n=7, w=3) }}",
         "49,151,123,456,789 to a   7"),
        ("{{ [1, 2, 3] | batch(2) | list }}", "[[1, 2], [3]]"),
        ("{{ ['a', 'b'] | map('center', 3) | join('|') }}", " a | b "),
        ("{{ 'a b' | wordwrap(1) }}", "a\nb"),
    ],
)  # fmt: skip
def test_steps_that_make_little_are_those_of_jinja(source: str, text: str) -> None:
    assert filled(templates(templates={"one": {"text": source}})) == {"text": text}


@pytest.mark.parametrize("source", HUGE.values(), ids=HUGE.keys())
def test_a_template_that_takes_too_much_ends_at_once(source: str) -> None:
    found = templates(templates={"one": {"text": source}})
    started = time.monotonic()
    with pytest.raises(InvalidDraft, match="takes more than 20000 steps or 10000 characters"):
        filled(found, xs=list(range(100)))
    assert time.monotonic() - started < 5


def test_each_rendering_has_its_own_steps() -> None:
    found = templates(templates={"one": {"text": "{% for a in range(9000) %}{% endfor %}done"}})
    assert [filled(found) for _ in range(4)] == [{"text": "done"}] * 4


def test_a_template_that_is_none_is_found_by_its_line() -> None:
    broken = {"text": "fine\n{% if %}"}
    found = templates(templates={"one": broken, "two": {"text": "fine"}})
    with pytest.raises(InvalidSettings, match="line 2") as caught:
        filled(found)
    assert caught.value.field == "channels.email.templates.one.text"
    assert filled(found, "two") == {"text": "fine"}


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"template": "two"}, "template"),
        ({"template": 7}, "template"),
        ({"template": "one", "body": {"text": "x"}}, "template"),
        ({"data": {"name": "Ada"}, "body": {"text": "x"}}, "data"),
        ({"template": "one", "data": "name=Ada"}, "data"),
        ({"template": "one", "data": {"name": object()}}, "data.name"),
        ({"template": "one", "data": {"name": "x" * 20_000}}, "data"),
        ({}, "body"),
    ],
)
def test_what_is_said_wrongly_is_refused_by_its_name(asked: dict[str, Any], field: str) -> None:
    found = templates(templates={"one": {"text": "{{ name }}"}})
    with pytest.raises(InvalidDraft) as caught:
        found.fill(Draft(channel="email", recipient="ada", **asked))
    assert caught.value.field == field


@pytest.mark.parametrize("bad", [{"No Name": {"text": "x"}}, {"one": {}}])
def test_settings_refuse_names_and_bodies_that_are_none(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings) as caught:
        Settings.load(channels={"email": {"transport": "memory", "templates": bad}})
    assert caught.value.field.startswith("channels.email")


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] == "jinja2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "dispatcher.templating.sandbox", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    found = templates(templates={"one": {"text": "x"}})
    with pytest.raises(InvalidSettings, match="need jinja2") as caught:
        filled(found)
    assert "pip install 'dispatcher[templates]'" in caught.value.accepted
    plain = Draft(channel="email", recipient="ada", body={"text": "x"})
    assert found.fill(plain) is plain


def test_the_page_shows_what_works() -> None:
    page = (Path(__file__).parents[2] / "docs" / "templates.md").read_text("utf-8")
    settings = re.search(r"```toml\n(.*?)```", page, re.DOTALL)
    result = re.search(r"```json\n(.*?)```", page, re.DOTALL)
    assert settings is not None
    assert result is not None
    known = Settings.load(**tomllib.loads(settings[1])).channels
    found = Templates(known, max_bytes=10_000, max_depth=32)
    assert filled(found, "reminder", name="Ada & Ben", at="9:00") == json.loads(result[1])


def test_neither_draft_nor_settings_show_what_they_hold() -> None:
    draft = Draft(channel="email", recipient="ada", template="one", data={"code": CANARY})
    channel = Channel(transport="memory", templates={"one": {"text": CANARY}})
    assert CANARY not in repr(draft) + repr(channel)
