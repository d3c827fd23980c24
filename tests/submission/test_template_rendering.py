"""Templates: rendered into bodies, escaped where they are HTML, and bounded in all they take."""

from __future__ import annotations

import json
import pickle
import re
import sys
import tomllib
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from dispatcher import ChannelSettings, Draft, InvalidDraft, InvalidSettings, Settings
from dispatcher.templating import Templates, sandbox
from tests.support.soak import a_third_of

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


GROWING = "{{% set n = namespace(s='x', l=[1]) %}}{{% for a in range(999) %}}{}{{% endfor %}}"
NESTED = GROWING.format("{% set n.l = [n.l, n.l] %}").replace("999", "99")
TWINS = "{% set n = namespace(l=1, k=1) %}{% for a in range(99) %}{% set n.l = [n.l, n.l] %}"
TWINS += "{% set n.k = [n.k, n.k] %}{% endfor %}"
TUPLES = NESTED.replace("[n.l, n.l]", "(n.l, n.l)").replace("l=[1]", "l=(1,)")
TOO_MUCH = "takes more than 2000 steps or 10000 characters"
NO_TEST = "cannot be rendered (TemplateRuntimeError)"
ATTACKS = {
    "loops": ("{% for a in xs %}" * 3 + "{% endfor %}" * 3, TOO_MUCH),
    "a range": ("{% for a in range(n) %}{% endfor %}", TOO_MUCH),
    "ranges that are kept": (GROWING.format("{% set n.l = [n.l, range(999) | list] %}"), TOO_MUCH),
    "a power": ("{{ 10 ** (10 ** 10) }}", TOO_MUCH),
    "a sum": (GROWING.format("{% set n.s = n.s + n.s %}"), TOO_MUCH),
    "a sum of lists": (GROWING.format("{% set n.l = n.l + n.l %}"), TOO_MUCH),
    "texts in a row": (GROWING.format("{% set n.s = n.s ~ n.s %}"), TOO_MUCH),
    "a block": (GROWING.format("{% set n.s %}{{ n.s }}{{ n.s }}{% endset %}"), TOO_MUCH),
    "joins": (GROWING.format("{% set n.s = [n.s, n.s] | join %}"), TOO_MUCH),
    "joins by a text": ("{{ xs | join(a) }}", TOO_MUCH),
    "joins by a text that are not put out": ("{{ long | join(a ~ a) | length }}", TOO_MUCH),
    "replacements": ("{{ a | replace('x', a) }}", TOO_MUCH),
    "replacements of nothing": ("{{ a | replace('', a) }}", TOO_MUCH),
    "a text that is not put out": ("{{ (a ~ a ~ a) | upper | length }}", TOO_MUCH),
    "large numbers that are not put out": (
        ("{% set n = namespace(l=[10 ** 1000]) %}{% for a in range(12) %}"
        "{% set n.l = n.l + n.l %}{% endfor %}{{ n.l | string | length }}"),
        TOO_MUCH,
    ),
    "escapes": (GROWING.format("{% set n.s = (n.s ~ '<') | forceescape | urlencode %}"), TOO_MUCH),
    "calls": (
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        TOO_MUCH,
    ),
    "its output": ("{% for a in range(900) %}xxxxxxxxxxxxxxxx{% endfor %}", TOO_MUCH),
    "plain text that is kept": (
        "{% set s %}{% for a in range(999) %}" + "x" * 5_000 + "{% endfor %}{% endset %}",
        TOO_MUCH,
    ),
    "plain text of a macro": (
        "{% macro f() %}" + "x" * 5_000 + "{% endmacro %}"
        "{% set s %}{% for a in range(999) %}{{ f() }}{% endfor %}{% endset %}",
        TOO_MUCH,
    ),
    "a list in itself, put out": (NESTED + "{{ n.l }}", TOO_MUCH),
    "a list in itself, in a row": (NESTED + "{{ 'a' ~ n.l }}", TOO_MUCH),
    "a list in itself, as a text": (NESTED + "{{ n.l | string }}", TOO_MUCH),
    "a list in itself, as JSON": (NESTED + "{{ n.l | tojson }}", TOO_MUCH),
    "a list in itself, joined": (NESTED + "{{ n.l | join(',') }}", TOO_MUCH),
    "a list in itself, compared": (TWINS + "{{ n.l == n.k }}", TOO_MUCH),
    "a list in itself, looked for": (TWINS + "{{ n.l in [n.k] }}", TOO_MUCH),
    "a list in itself, tested": (TWINS + "{{ n.l is eq(n.k) }}", TOO_MUCH),
    "a list in itself, chosen": (TWINS + "{{ [n.l] | select('eq', n.k) | list }}", TOO_MUCH),
    "a tuple in itself, as a key": (
        TUPLES + "{{ {}.get(n.l, 1) }}",
        TOO_MUCH,
    ),
    "a tuple in itself, as a key of a mapping": (TUPLES + "{{ {n.l: 1} }}", TOO_MUCH),
    "a tuple in itself, in brackets": (
        TUPLES + "{{ {}[n.l] }}",
        TOO_MUCH,
    ),
    "a tuple in itself, hashed": (
        TUPLES + "{{ n.l in {} }}",
        TOO_MUCH,
    ),
    "a long list, looked through often": (
        "{% for b in range(900) %}{% if b in long %}{% endif %}{% endfor %}", TOO_MUCH,
    ),
    "a long list, rejected by itself": ("{{ long | reject('in', long) | list }}", NO_TEST),
    "a long list, chosen by itself": ("{{ long | select('in', long) | list }}", NO_TEST),
    "fields, rejected by a long list": ("{{ rows | rejectattr('n', 'in', long) | list }}", NO_TEST),
    "a long text, cut often": (
        "{% for b in range(999) %}{% set c = a[1:] %}{% endfor %}", TOO_MUCH,
    ),
    "a long text, read often": (
        "{% for b in range(999) %}{% set c = a | upper %}{% endfor %}", TOO_MUCH,
    ),
    "a rounded number": ("{{ 1.5 | round(n, 'floor') }}", TOO_MUCH),
    "decimals": ("{{ 1.5 | decimals(n) }}", TOO_MUCH),
    "a namespace": (NESTED + "{{ n }}", "reads a Namespace, which no template may"),
    "letters that are kept": ("{{ a | list }}", "takes a text for a list"),
    "letters that are mapped": ("{{ a | map('upper') | list }}", "takes a text for a list"),
    "a product": ("{{ 'x' * n }}", "uses * on what is no number"),
    "a list often": ("{{ n * xs }}", "uses * on what is no number"),
    "a width": ("{{ '%*d' % (n, 1) }}", "uses % on what is no number"),
    "a width in the text": ("{{ wide % 1 }}", "uses % on what is no number"),
    "a format": ("{{ '{:>{}}'.format('a', n) }}", "calls format, which no template may"),
    "a format of a field": ("{{ '{n:.{n}}'.format_map({'n': n}) }}", "calls format_map"),
    "a format with a filter between": ("{{ ('{:>{}}' | string).format('a', n) }}", "calls format"),
    "a safe format": ("{{ ('{:>{}}' | safe).format('a', n) }}", "calls format"),
    "tabs": ("{{ a.expandtabs(n) }}", "calls expandtabs"),
    "a method": ("{{ a.join(a) }}", "calls join"),
    "a method by its name": ("{{ a['zfill'](n) }}", "calls zfill"),
    "a method of a list": ("{{ xs.count(1) }}", "calls count"),
    "a class of many": ("{{ {}.fromkeys(xs, a) }}", "calls fromkeys"),
    "a filter of a map by names": (
        "{{ long | map('replace', old='1', new=a) | list | length }}",
        "gives a filter of map more than a value",
    ),
    "wide texts of a range": ("{{ range(n) | map('center', 60000) | list }}", TOO_MUCH),
    "wide texts": ("{{ range(9) | map('center', 60000) | list }}", "cannot be rendered"),
    "texts of a range": ("{{ range(n) | map('string') | list | length }}", TOO_MUCH),
    "a filter of a map": ("{{ xs | map('join', a) | list }}", "cannot be rendered"),
    "lists in a sum": ("{{ [xs, xs] | sum(start=[]) }}", "cannot be rendered (TypeError)"),
    "JSON with a margin": ("{{ xs | tojson(indent=n) }}", "cannot be rendered (TypeError)"),
    "a trim of many": ("{{ a | trim(a) }}", "cannot be rendered (TypeError)"),
}  # fmt: skip


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow a tenth of the steps: memory is watched meanwhile, which takes its time."""
    monkeypatch.setattr(sandbox, "MOST_STEPS", 2_000)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("name", a_third_of([*ATTACKS]))
def test_a_template_takes_a_bounded_number_of_steps_and_little_memory(name: str) -> None:
    """A number or a text of the data decides about a width, a separator or a replacement."""
    source, problem = ATTACKS[name]
    found = templates(templates={"one": {"text": source}})
    data: dict[str, Any] = {
        "n": 10**9, "a": "x" * 4_000, "wide": "%9999999d", "xs": [*range(100)],
        "long": [*range(1_000)], "rows": [{"n": -1}] * 100,
    }  # fmt: skip
    tracemalloc.start()
    try:
        with pytest.raises(InvalidDraft) as caught:
            filled(found, **data)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()
    assert problem in caught.value.problem


LEFT_OUT = [
    "attr", "batch", "center", "filesizeformat", "format", "groupby", "indent", "pprint", "random",
    "slice", "striptags", "urlize", "wordwrap", "xmlattr",
]  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_filter_that_makes_much_of_little_is_not_there(name: str) -> None:
    found = templates(templates={"one": {"text": f"{{{{ a | {name} }}}}"}})
    with pytest.raises(InvalidSettings, match=f"No filter named '{name}'") as caught:
        filled(found, a="x")
    assert caught.value.field == "channels.email.templates.one.text"


def test_the_page_names_the_filters_that_are_there() -> None:
    page = (Path(__file__).parents[2] / "docs" / "templates.md").read_text("utf-8")
    [named] = re.findall(r"\*\*Few filters\*\*.*?: (.*?)\. The methods", page)
    assert re.findall(r"`(\w+)`", named) == sorted(sandbox.READERS | sandbox.LOOKS)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("name", sorted(sandbox.READERS | sandbox.LOOKS))
def test_a_filter_costs_steps_for_what_it_reads(name: str) -> None:
    """Reading a long list again and again ends; looking at it does not."""
    source = f"{{% for b in range(900) %}}{{% set c = xs | {name} %}}{{% endfor %}}done"
    found = templates(templates={"one": {"text": source}})
    xs: Any = [*range(1_000)]
    if name in sandbox.LOOKS:
        assert filled(found, xs=xs) == {"text": "done"}
        return
    with pytest.raises(InvalidDraft) as caught:
        filled(found, xs=xs)
    assert TOO_MUCH in caught.value.problem or "cannot be rendered" in caught.value.problem


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ [1, 2, 3] | join(', ') }}", "1, 2, 3"),
        ("{{ [{'n': 1}, {'n': 2}] | join('-', attribute='n') }}", "1-2"),
        ("{{ 'aXbX' | replace('X', '_', 1) }}", "a_bX"),
        ("{{ 12345678901 | replace(1, 'one') }}", "one234567890one"),
        ("{{ 9.5 | decimals }} {{ 12 | decimals(1) }}", "9.50 12.0"),
        ("{{ 9.567 | round(2) }}", "9.57"),
        ("{{ 10 % 3 }}{{ 2 * 3 }}{{ 2 ** 3 }}{{ 7 // 2 }}", "1683"),
        ("{{ 'a' + 'b' }}{{ [1] + [2] }}", "ab[1, 2]"),
        ("{{ [{'n': 3}, {'n': 4}] | sum(attribute='n') }}", "7"),
        ("{{ [{'n': 'b'}, {'n': 'a'}] | map(attribute='n') | sort | join }}", "ab"),
        ("{{ ['a', 'b'] | map('upper') | join('|') }}", "A|B"),
        ("{{ [{'n': 1}, {'n': 0}] | selectattr('n') | map(attribute='n') | list }}", "[1]"),
        ("{{ [1, 2, 3] | select('odd') | list }}", "[1, 3]"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"),
        ("{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{% endfor %}", "ab"),
        ("{{ {'a': 1}.get('b', 'none') }}", "none"),
        ("{{ missing | default('you') }}", "you"),
        ("{{ 'a' if missing is undefined else 'b' }}", "a"),
        ("{% for a in [1, 2] %}{{ loop.index }}{{ loop.cycle('x', 'y') }}{% endfor %}", "1x2y"),
        ("{% macro f(a) %}<{{ a }}{{ caller() }}>{% endmacro %}{% call f(1) %}b{% endcall %}",
         "<1b>"),
        ("{% for a in [[1, [2]]] recursive %}{{ a if a is number else loop(a) }}{% endfor %}",
         "12"),
        ("{{ 'hello world' | title | truncate(8, true, '…', 0) }}", "Hello W…"),
        ("{{ {'a': 'é<'} | tojson }}", '{"a": "\\u00e9\\u003c"}'),
        ("{% for a in range(3) %}{{ a }}{% endfor %}{{ range(1, 4) | list }}", "012[1, 2, 3]"),
        ("{{ 'b' in 'abc' }}{{ 2 in [1, 2] }}{{ 'a' in {'a': 1} }}", "TrueTrueTrue"),
        ("{% filter upper %}a{{ 'b' }}{% endfilter %}", "AB"),
    ],
)  # fmt: skip
def test_the_remaining_language_is_jinja(source: str, text: str) -> None:
    assert filled(templates(templates={"one": {"text": source}})) == {"text": text}


def test_a_long_body_may_take_more_steps() -> None:
    known = ChannelSettings(
        transport="memory", templates={"one": {"text": "{{ a }}{{ a | length }}"}}
    )
    found = Templates({"email": known}, max_bytes=10_000_000, max_depth=32)
    assert len(filled(found, a="x" * 9_000_000)["text"]) == 9_000_007


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
def test_bad_arguments_of_a_template_are_refused_by_field(
    asked: dict[str, Any], field: str
) -> None:
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
    with pytest.raises(InvalidSettings, match="needs jinja2") as caught:
        filled(found)
    assert "pip install 'quota-dispatcher[templates]'" in caught.value.accepted
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
    channel = ChannelSettings(transport="memory", templates={"one": {"text": CANARY}})
    assert CANARY not in repr(draft) + repr(channel)
