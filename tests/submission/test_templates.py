"""Templates: rendered into bodies, escaped where they are HTML, and bounded in all they take."""

from __future__ import annotations

import pickle
import re
import sys
import tomllib
import tracemalloc
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dispatcher import (
    ChannelSettings,
    Draft,
    InvalidDraft,
    InvalidSettings,
    MessageNotFound,
    Settings,
    TooLate,
    UnknownChannel,
)
from dispatcher.message import new_id
from dispatcher.templating import Templates, sandbox
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build

LATER = FAR + timedelta(hours=1)
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
    known = ChannelSettings(transport="memory", **channel)
    return Templates({"email": known}, max_bytes=10_000, max_depth=32)


def filled(known: Templates, template: str = "one", **data: Any) -> Any:
    return known.fill(Draft(channel="email", recipient="ada", template=template, data=data)).body


def test_texts_are_rendered_and_html_is_escaped() -> None:
    known = templates(templates={"one": REMINDER})
    assert filled(known, name="<Ada> & co", items=["a", "b"]) == {
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
    known = templates(templates_dir=tmp_path)
    assert filled(known, "welcome", name="<b>") == {
        "subject": "Hello <b>",
        "html": "<body>&lt;b&gt;</body>",
    }
    with pytest.raises(InvalidDraft, match=r"one of its templates: welcome$"):
        filled(known, "frame")


def test_a_template_that_is_in_both_places_or_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.text").write_text("x", encoding="utf-8")
    with pytest.raises(InvalidSettings, match="'one' exists twice") as caught:
        filled(templates(templates={"one": REMINDER}, templates_dir=tmp_path))
    assert caught.value.field == "channels.email.templates_dir"
    with pytest.raises(InvalidSettings, match="FileNotFoundError"):
        filled(templates(templates_dir=tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ name }}", "needs name"),
        ("{{ given.more }}", "needs a value that data lacks"),
        ("{{ given[secret] }}", "needs a value that data lacks"),
        ("{{ secret + 1 }}", "cannot be rendered (TypeError)"),
        ("{{ ''.__class__ }}", "cannot be rendered (SecurityError)"),
        ("{% include 'other' %}", "cannot be rendered (TypeError)"),
    ],
)
def test_data_that_does_not_fit_is_refused_by_the_names_of_the_template(
    source: str, problem: str
) -> None:
    known = templates(templates={"one": {"text": source}})
    with pytest.raises(InvalidDraft) as caught:
        filled(known, secret=CANARY, given={CANARY[:3]: 1})
    error = caught.value
    assert (error.field, error.problem) == ("data", f"channels.email.templates.one.text {problem}")
    assert CANARY not in repr(pickle.loads(pickle.dumps(error)).__dict__)  # noqa: S301 - our own
    assert error.__cause__ is None
    assert error.__suppress_context__ or error.__context__ is None


REFUSED = {
    "a range": ("{% for a in range(n) %}{% endfor %}", "calls range"),
    "a power": ("{{ 10 ** (10 ** 10) }}", "uses **"),
    "a product": ("{{ 'x' * n }}", "uses *"),
    "a list often": ("{{ n * xs }}", "uses *"),
    "a width": ("{{ '%*d' % (n, 1) }}", "uses %"),
    "a width in the text": ("{{ wide % 1 }}", "uses %"),
    "a format": ("{{ '{:>{}}'.format('a', n) }}", "calls format"),
    "a format of a field": ("{{ '{n:.{n}}'.format_map({'n': n}) }}", "calls format_map"),
    "a format with a filter between": ("{{ ('{:>{}}' | string).format('a', n) }}", "calls format"),
    "a format of a filter": ("{{ '%9999999d' | format(1) }}", "No filter named 'format'"),
    "tabs": ("{{ a.expandtabs(n) }}", "calls expandtabs"),
    "a method": ("{{ a.join(a) }}", "calls join"),
    "a method by its name": ("{{ a['zfill'](n) }}", "calls a value"),
    "a method in a variable": ("{% set f = a.zfill %}{{ f(n) }}", "calls f"),
    "a method of a list": ("{{ xs.count(1) }}", "calls count"),
    "a class of many": ("{{ {}.fromkeys(xs, a) }}", "calls fromkeys"),
    "joins by a text": ("{{ xs | join(a) }}", "the filter join an argument that is no literal"),
    "replacements": ("{{ a | replace('x', a) }}", "the filter replace an argument"),
    "a rounded number": ("{{ 1.5 | round(n, 'floor') }}", "the filter round an argument"),
    "decimals": ("{{ 1.5 | decimals(n) }}", "the filter decimals an argument"),
    "JSON with a margin": ("{{ xs | tojson(indent=n) }}", "the filter tojson an argument"),
    "a filter of a map": ("{{ xs | map('join', a) | list }}", "the filter map an argument"),
    "arguments from a list": ("{{ a | replace(*xs) }}", "the filter replace arguments of the data"),
    "a long list, chosen by itself": (
        "{{ long | select('in', long) | list }}", "the filter select an argument",
    ),
    "calls": (
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "calls a macro inside a macro",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_much_of_little_is_refused_when_the_template_is_read(name: str) -> None:
    """A number or a text of the data would decide about a width, a separator or a replacement."""
    source, problem = REFUSED[name]
    with pytest.raises(InvalidSettings) as caught:
        filled(templates(templates={"one": {"text": f"\n{source}"}}))
    assert caught.value.field == "channels.email.templates.one.text"
    assert problem in caught.value.problem
    assert caught.value.problem.endswith("in line 2")


def test_a_file_that_one_extends_is_read_by_the_same_rules(tmp_path: Path) -> None:
    (tmp_path / "one.text").write_text("{% extends '_frame' %}", encoding="utf-8")
    (tmp_path / "_frame").write_text("{{ 'x' * n }}", encoding="utf-8")
    with pytest.raises(InvalidDraft, match=r"cannot be rendered \(TemplateSyntaxError\)"):
        filled(templates(templates_dir=tmp_path), n=10**9)


BOUNDED = {
    "a loop in a loop": "{% for a in long %}{% for b in long %}x{% endfor %}{% endfor %}",
    "a long value often": "{% for b in xs %}{{ a }}{% endfor %}",
    "letters": "{{ a | list }}{{ a | list }}",
    "JSON": "{{ long | tojson }}" * 4,
    "escapes": "{{ a | replace('x', '<') | forceescape | urlencode }}",
}


@pytest.mark.parametrize("name", BOUNDED)
def test_a_text_ends_at_its_bound(name: str) -> None:
    data: dict[str, Any] = {"a": "x" * 4_000, "xs": [*range(100)], "long": [*range(1_000)]}
    tracemalloc.start()
    try:
        with pytest.raises(InvalidDraft, match="has more than 10000 characters"):
            filled(templates(templates={"one": {"text": BOUNDED[name]}}), **data)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_the_page_names_the_filters_that_are_there() -> None:
    page = (Path(__file__).parents[2] / "docs" / "submitting.md").read_text("utf-8")
    [named] = re.findall(r"\*\*Few filters\*\*.*?: (.*?)\. The methods", page)
    assert re.findall(r"`(\w+)`", named) == sorted(sandbox.FILTER_NAMES)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ [1, 2, 3] | join(', ') }}", "1, 2, 3"),
        ("{{ 'aXbX' | replace('X', '_', 1) }}", "a_bX"),
        ("{{ 9.5 | decimals }} {{ 12 | decimals(1) }}", "9.50 12.0"),
        ("{{ 7 // 2 }}{{ 7 - 2 }}{{ 7 / 2 }}", "353.5"),
        ("{{ 'a' + 'b' }}{{ [1] + [2] }}", "ab[1, 2]"),
        ("{{ [{'n': 3}, {'n': 4}] | sum(attribute='n') }}", "7"),
        ("{{ [{'n': 'b'}, {'n': 'a'}] | map(attribute='n') | sort | join }}", "ab"),
        ("{{ [1, 2, 3] | select('odd') | list }}", "[1, 3]"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"),
        ("{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{% endfor %}", "ab"),
        ("{{ missing | default('you') }}", "you"),
        ("{% for a in [1, 2] %}{{ loop.index }}{{ loop.cycle('x', 'y') }}{% endfor %}", "1x2y"),
        ("{% macro f(a) %}<{{ a }}{{ caller() }}>{% endmacro %}{% call f(1) %}b{% endcall %}",
         "<1b>"),
        ("{% for a in [[1, [2]]] recursive %}{{ a if a is number else loop(a) }}{% endfor %}",
         "12"),
        ("{{ 'hello world' | title | truncate(8, true, '…', 0) }}", "Hello W…"),
        ("{{ {'a': 'é<'} | tojson }}", '{"a": "\\u00e9\\u003c"}'),
        ("{{ 'b' in 'abc' }}{{ 2 in [1, 2] }}{{ 'a' in {'a': 1} }}", "TrueTrueTrue"),
        ("{% filter upper %}a{{ 'b' }}{% endfilter %}", "AB"),
    ],
)  # fmt: skip
def test_the_remaining_language_is_jinja(source: str, text: str) -> None:
    assert filled(templates(templates={"one": {"text": source}})) == {"text": text}


def test_a_template_that_is_none_is_found_by_its_line() -> None:
    broken = {"text": "fine\n{% if %}"}
    known = templates(templates={"one": broken, "two": {"text": "fine"}})
    with pytest.raises(InvalidSettings, match="line 2") as caught:
        filled(known)
    assert caught.value.field == "channels.email.templates.one.text"
    assert filled(known, "two") == {"text": "fine"}


@pytest.mark.parametrize("bad", [{"No Name": {"text": "x"}}, {"one": {}}])
def test_settings_refuse_names_and_bodies_that_are_none(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings) as caught:
        Settings.load(channels={"email": {"transport": "memory", "templates": bad}})
    assert caught.value.field.startswith("channels.email")


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [module for module in sys.modules if module.split(".")[0] == "jinja2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "dispatcher.templating.sandbox", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    known = templates(templates={"one": {"text": "x"}})
    with pytest.raises(InvalidSettings, match="needs jinja2") as caught:
        filled(known)
    assert "pip install 'quota-dispatcher[templates]'" in caught.value.accepted
    plain = Draft(channel="email", recipient="ada", body={"text": "x"})
    assert known.fill(plain) is plain


def test_the_page_shows_what_works() -> None:
    page = (Path(__file__).parents[2] / "docs" / "submitting.md").read_text("utf-8")
    shown = page.partition("\n## Templates\n")[2]
    settings = re.search(r"```toml .*?\n(.*?)```", shown, re.DOTALL)
    assert settings is not None
    known = Settings.load(**tomllib.loads(settings[1])).channels
    body = filled(
        Templates(known, max_bytes=10_000, max_depth=32), "reminder", name="Ada & Ben", at="9:00"
    )
    assert f'`"{body["subject"]}"`' in shown
    assert "<b>Ada &amp; Ben</b>" in body["html"]
    assert "`<b>Ada &amp; Ben</b>`" in shown


def test_neither_draft_nor_settings_show_what_they_hold() -> None:
    draft = Draft(channel="email", recipient="ada", template="one", data={"code": CANARY})
    channel = ChannelSettings(transport="memory", templates={"one": {"text": CANARY}})
    assert CANARY not in repr(draft) + repr(channel)


def channels(text: str = "Hello {{ name }}") -> dict[str, Any]:
    return {"memory": {"transport": "memory", "templates": {"hello": {"text": text}}}}


@pytest.fixture
def house(build: Build) -> House:
    return build(channels=channels())


def asked(recipient: str = "ada", **data: Any) -> dict[str, Any]:
    return {
        "channel": "memory", "recipient": recipient, "template": "hello", "data": data,
        "send_at": LATER,
    }  # fmt: skip


def test_a_rendered_body_is_stored_and_stays(house: House, build: Build) -> None:
    message = house.dispatcher.submit(**asked(name="Ada"))
    assert message.body == {"text": "Hello Ada"}
    later = build(channels=channels("Goodbye {{ name }}"))
    assert later.again(message).body == {"text": "Hello Ada"}


def test_a_repeated_submit_gets_its_message_though_the_template_has_changed(
    house: House, build: Build
) -> None:
    again = asked(name="Ada") | {"idempotency_key": "k"}
    message = house.dispatcher.submit(**again)
    later = build(channels=channels("Goodbye {{ name }}"))
    assert later.dispatcher.submit(**again) == message


@pytest.mark.every_database
def test_an_update_renders_it_for_what_is_stored(house: House, build: Build) -> None:
    message = house.dispatcher.submit(**asked(name="Ada"))
    updated = house.dispatcher.update(message.id, template="hello", data={"name": "Ben"})
    assert updated.body == {"text": "Hello Ben"}
    assert updated == house.again(message)
    later = build(channels=channels("Goodbye {{ name }}"), opened=False)
    updated = later.dispatcher.update(message.id, template="hello", data={"name": "Ben"})
    assert updated.body == {"text": "Goodbye Ben"}
    assert updated.send_at == message.send_at


NO_UPDATES: list[tuple[dict[str, Any], str]] = [
    ({"template": "hello"}, "data"),
    ({"template": "bye", "data": {"name": "Ada"}}, "template"),
    ({"template": 7}, "template"),
    ({"template": "hello", "data": {"name": object()}}, "data.name"),
    ({"template": "hello", "data": {"name": "Ada"}, "body": {"text": "x"}}, "template"),
    ({"template": "hello", "data": {"name": "x" * 70_000}}, "data"),
    ({"template": "hello", "data": "Ada"}, "data"),
    ({"data": {"name": "Ada"}}, "data"),
    ({"body": {"text": "x"}, "data": {"name": "Ada"}}, "data"),
    ({}, "body"),
]


def test_an_update_is_refused_as_a_submit_is(house: House) -> None:
    message = house.dispatcher.submit(**asked(name="Ada"))
    before = house.snapshot()
    asked_for: dict[str, Any] = {"channel": "memory", "recipient": "ben", "send_at": LATER}
    for source, field in NO_UPDATES:
        with pytest.raises(InvalidDraft) as refused:
            house.dispatcher.update(message.id, **source)
        assert refused.value.field == field
        with pytest.raises(InvalidDraft) as alike:
            house.dispatcher.submit(**asked_for, **source)
        assert str(refused.value) == str(alike.value)
        assert house.snapshot() == before


def test_an_update_by_a_template_that_cannot_be_used(house: House, build: Build) -> None:
    message = house.dispatcher.submit(**asked(name="Ada"))
    broken = build(channels=channels("Hello {{ name"), opened=False)
    with pytest.raises(InvalidSettings):
        broken.dispatcher.update(message.id, template="hello", data={"name": "Ada"})
    strange = build(channels={"other": {"transport": "memory"}}, opened=False)
    with pytest.raises(UnknownChannel):
        strange.dispatcher.update(message.id, template="hello", data={"name": "Ada"})
    house.dispatcher.cancel(message.id)
    with pytest.raises(TooLate):
        house.dispatcher.update(message.id, template="hello", data={"name": "Ben"})
    with pytest.raises(MessageNotFound):
        house.dispatcher.update(new_id(), template="hello", data={"name": "Ada"})
