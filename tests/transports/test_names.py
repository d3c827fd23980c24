"""A channel names its transport: one that ships, an entry point, or a place in a module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dispatcher import Channel, InvalidSettings, Message, Settings, TemporaryFailure
from dispatcher.transports import base, load, registry

CARRIER = """
class Pigeon:
    def __init__(self, loft="here", timeout=1.0):
        self.loft, self.timeout = loft, timeout

    def send(self, message):
        return f"flown from {self.loft}"
"""


def install(folder: Path, distribution: str, entry_point: str) -> None:
    """Lay a distribution into a folder as an installer does, with one entry point."""
    info = folder / f"{distribution}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[dispatcher.transports]\n{entry_point}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder on ``sys.path`` with a module of pigeons."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "pigeons_for_tests.py").write_text(CARRIER)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "pigeons_for_tests", raising=False)
    return folder


def made(transport: str, **options: Any) -> Any:
    channel = Channel(transport=transport, options=options)
    return load("post", channel, Settings.load(transport_timeout=7))


def refused(transport: str, **options: Any) -> InvalidSettings:
    with pytest.raises(InvalidSettings) as caught:
        made(transport, **options)
    assert caught.value.field.startswith("channels.post.")
    return caught.value


def test_a_distribution_offers_a_transport_by_an_entry_point(site: Path) -> None:
    install(site, "carriers", "pigeon = pigeons_for_tests:Pigeon")
    assert made("pigeon", loft="there").send(None) == "flown from there"


def test_what_is_offered_is_named_where_a_name_is_unknown(site: Path) -> None:
    install(site, "carriers", "pigeon = pigeons_for_tests:Pigeon")
    error = refused("pidgin")
    assert "there is no transport 'pidgin'" in error.problem
    assert "pigeon" in error.accepted
    assert "memory" in error.accepted


def test_an_offer_does_not_take_the_name_of_one_that_ships(site: Path) -> None:
    install(site, "carriers", "memory = pigeons_for_tests:Pigeon")
    assert type(made("memory")).__module__ == "dispatcher.transports.memory"


def test_a_name_that_two_distributions_offer_is_refused(site: Path) -> None:
    install(site, "carriers", "pigeon = pigeons_for_tests:Pigeon")
    install(site, "other-carriers", "pigeon = elsewhere:Pigeon")
    error = refused("pigeon")
    assert "carriers" in error.problem
    assert "other-carriers" in error.problem
    assert "pigeons_for_tests:Pigeon" in error.accepted or "elsewhere:Pigeon" in error.accepted


def test_the_same_offer_seen_twice_is_one(site: Path, tmp_path: Path) -> None:
    install(site, "carriers", "pigeon = pigeons_for_tests:Pigeon")
    install(site, "carriers-copy", "pigeon = pigeons_for_tests:Pigeon")
    assert made("pigeon").loft == "here"


def test_an_offer_that_cannot_be_loaded_names_its_distribution(site: Path) -> None:
    install(site, "carriers", "pigeon = no_such_module_here:Pigeon")
    error = refused("pigeon")
    assert "carriers" in error.problem
    assert "no_such_module_here" in error.problem


def test_what_is_not_installed_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, site: Path
) -> None:
    (site / "needy_for_tests.py").write_text("import a_library_of_nobody\n")
    needy = registry._Shipped("needy_for_tests:Needy", "needy")
    monkeypatch.setitem(registry._SHIPPED, "needy", needy)
    error = refused("needy")
    assert error.field == "channels.post.transport"
    assert "a_library_of_nobody" in error.problem
    assert "dispatcher[needy]" in error.accepted


@pytest.mark.parametrize("name", sorted(registry._SHIPPED))
def test_every_transport_that_ships_is_there(name: str) -> None:
    found = registry.find("post", name)
    assert callable(found.send)


def test_no_transport_is_imported_before_it_is_named() -> None:
    code = (
        "import sys, dispatcher, dispatcher.transports\n"
        "heavy = {'smtplib', 'httpx', 'apprise', 'email.message'} & sys.modules.keys()\n"
        "print(sorted(heavy - before))\n"
    )
    code = "import sys\nimport celery, sqlalchemy, redis\nbefore = set(sys.modules)\n" + code
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


def test_a_class_that_takes_a_timeout_is_given_that_of_the_settings(site: Path) -> None:
    assert made("pigeons_for_tests:Pigeon").timeout == 7
    assert made("pigeons_for_tests:Pigeon", timeout=2).timeout == 2


def test_a_transport_that_ships_has_the_timeout_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, site: Path
) -> None:
    shipped = registry._Shipped("pigeons_for_tests:Pigeon")
    monkeypatch.setitem(registry._SHIPPED, "pigeon", shipped)
    assert made("pigeon").timeout == 7
    error = refused("pigeon", timeout=2)
    assert error.accepted == "transport_timeout instead"


class Picky:
    """Names the option that it refuses itself."""

    def __init__(self, **options: Any) -> None:
        raise InvalidSettings("colour", str(options), "blue")

    def send(self, message: Message) -> str | None:
        raise TemporaryFailure(message.channel)


def test_a_transport_names_the_option_that_it_refuses() -> None:
    error = refused(f"{__name__}:Picky", colour="red")
    assert error.field == "channels.post.options.colour"
    assert error.accepted == "blue"


class Closable:
    """Counts how often it is closed, and may fail at it."""

    def __init__(self, error: Exception | None = None) -> None:
        self.closed = 0
        self.error = error

    def close(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


def test_one_that_cannot_be_closed_keeps_no_other_one_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, fine = Closable(OSError("token=hunter2")), Closable()
    base.close_all([object(), broken, fine])
    assert (broken.closed, fine.closed) == (1, 1)
    assert "Closable was not closed: OSError" in caplog.text
    assert "hunter2" not in caplog.text
