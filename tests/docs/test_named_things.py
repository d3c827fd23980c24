"""README and some pages name what there is: files, sections, settings, checks, errors, duties."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dispatcher import Settings, errors
from dispatcher.celery.configuration import DUTIES
from dispatcher.cli import app as cli
from dispatcher.operations.checks import CHECKS
from dispatcher.transports import load
from tests.docs.pages import blocks, page
from tests.support.environment import ROOT

OPERATING = page("docs/operating.md")
SUBMITTING = page("docs/submitting.md")
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)")
_NOT_BY_SUBMIT = {
    "DispatcherError", "InvalidValue", "InvalidSettings", "MissingExtra", "SlotRefused",
    "LimitReached", "Unavailable", "LimitersUnavailable", "QueueUnavailable", "EmbeddedUnavailable",
    "DeliveryError", "TemporaryFailure", "PermanentFailure",
}  # fmt: skip


def sections(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def rows(text: str, header: str) -> list[list[str]]:
    """Return the cells of the table with this header."""
    lines = text.split(f"{header}\n")[1].split("\n\n", maxsplit=1)[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_a_link_leads_somewhere(name: str) -> None:
    """Those of the other pages are judged by ``make docs``, which does not read these."""
    found = _LINK.findall(page(name))
    assert len(found) >= 3
    for file, section in found:
        path = ROOT / (file or name)
        assert path.exists(), file
        assert not section or section in sections(path), f"{file}#{section}"


def test_the_tests_that_a_page_names_are_there() -> None:
    there = {path.name for path in (ROOT / "tests").rglob("*")}
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        names = re.findall(r"`(tests/[\w/.]+|test_\w+\.py)`", path.read_text(encoding="utf-8"))
        missing = [name for name in names if name not in there and not (ROOT / name).exists()]
        assert not missing, f"{path.name} names tests that are not there"


@pytest.mark.parametrize("name", ["docs/operating.md", "docs/submitting.md"])
def test_the_settings_of_a_page_are_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [shown] = blocks(page(name), "toml")
    (tmp_path / "dispatcher.toml").write_text(shown)
    monkeypatch.chdir(tmp_path)
    settings = Settings.load()
    assert set(tomllib.loads(shown)) <= settings.model_fields_set
    for each, channel in settings.channels.items():
        load(each, channel, settings)


def test_each_variable_is_a_setting() -> None:
    pages = map(Path.read_text, (ROOT / "docs").glob("*.md"))
    variables = {name for text in pages for name in re.findall(r"\bDISPATCHER_([A-Z_]+)", text)}
    fields = {name.split("__")[0].strip("_").lower() for name in variables}
    assert fields - {"config", "faults", ""} <= Settings.model_fields.keys()
    assert len(fields) >= 4


def test_every_kind_of_check_has_a_row() -> None:
    table = rows(OPERATING, "| checks | look at | stops `dispatcher worker` |")
    said = {kind for row in table for kind in re.findall(r"`(\w+)\.\*`", row[0])}
    assert said == {name.partition(".")[0] for name in CHECKS}


def test_every_error_of_a_submit_has_a_row() -> None:
    said = set(re.findall(r"`([A-Z]\w+)`", SUBMITTING.split("\n## Errors\n")[1]))
    there = {
        name
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.DispatcherError)
    }
    assert there - said - _NOT_BY_SUBMIT == {"PerhapsSent"}, "which is told where it is raised"
    assert "`PerhapsSent`" in SUBMITTING


def test_every_duty_of_the_sweep_has_a_row_and_is_in_the_glossary() -> None:
    told = rows(page("docs/architecture.md"), "| duty | every | does |")
    assert {row[0].strip("| `") for row in told} == set(DUTIES)
    words = set(re.findall(r"\*\*(\w+)\*\*", page("docs/glossary.md")))
    assert DUTIES.keys() - words == set()


def test_a_supervisor_leaves_a_worker_the_time_that_it_needs_to_end() -> None:
    seconds = f"{Settings.load().stop_grace.total_seconds():g}"
    assert f"stop_grace_period: {seconds}s" in page("docker-compose.yml")
    assert f"{seconds} seconds by default" in (ROOT / "docs" / "operating.md").read_text()
    told = CliRunner().invoke(cli, ["worker", "--help"])
    assert f"({seconds} s by default)" in " ".join(told.output.replace("│", " ").split())
