"""How the ``transport`` of a channel becomes one: a name that ships, an entry point, a place."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from packaging.requirements import Requirement
from pydantic import BaseModel

from dispatcher import ChannelSettings, InvalidSettings, Message, Settings, TemporaryFailure
from dispatcher.testing import a_message
from dispatcher.transports import Checks, base, load
from dispatcher.transports.base import SHIPPED

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
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
    channel = ChannelSettings(transport=transport, options=options)
    return load("post", channel, Settings.load(transport_timeout=7))


def refused(transport: str, **options: Any) -> InvalidSettings:
    with pytest.raises(InvalidSettings) as caught:
        made(transport, **options)
    assert caught.value.field.startswith("channels.post.")
    return caught.value


def test_a_distribution_offers_a_transport_by_an_entry_point(site: Path) -> None:
    for distribution in ("carriers", "carriers-copy"):  # the same offer twice is one
        install(site, distribution, "pigeon = pigeons_for_tests:Pigeon")
    assert made("pigeon", loft="there").send(None) == "flown from there"
    error = refused("pidgin")
    assert "there is no transport 'pidgin'" in error.problem
    assert "pigeon" in error.accepted
    assert "memory" in error.accepted
    install(site, "thieves", "memory = pigeons_for_tests:Pigeon")
    assert type(made("memory")).__module__ == "dispatcher.transports.local"
    install(site, "broken", "dove = no_such_module_here:Dove")
    problem = refused("dove").problem
    assert "no_such_module_here:Dove of broken (No module named 'no_such_module_here')" in problem


def test_a_name_that_two_distributions_offer_is_refused(site: Path) -> None:
    install(site, "carriers", "pigeon = pigeons_for_tests:Pigeon")
    install(site, "other-carriers", "pigeon = elsewhere:Pigeon")
    error = refused("pigeon")
    assert "other-carriers" in error.problem
    assert "pigeons_for_tests:Pigeon" in error.accepted or "elsewhere:Pigeon" in error.accepted


def test_a_class_that_takes_a_timeout_is_given_that_of_the_settings(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made("pigeons_for_tests:Pigeon").timeout == 7
    assert made("pigeons_for_tests:Pigeon", timeout=2).timeout == 2
    monkeypatch.setitem(SHIPPED, "pigeon", ("pigeons_for_tests:Pigeon", None))
    assert made("pigeon").timeout == 7
    assert refused("pigeon", timeout=2).accepted == "transport_timeout instead"


class Configured:
    """A transport of a user's own."""

    def __init__(self, *, address: str = "nowhere") -> None:
        if not address:
            raise ValueError("address: must not be empty")
        self.address = address

    def send(self, message: Message) -> str | None:
        return f"{self.address} {message.recipient}"


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give an importable module with things that are, and are not, transports."""
    module = ModuleType("own_transports")
    module.__dict__.update(
        function=lambda message: f"function {message.recipient}",
        Class=Configured,
        instance=Configured(address="made before"),
        NoSend=type("NoSend", (), {}),
        number=4711,
    )
    monkeypatch.setitem(sys.modules, "own_transports", module)


@pytest.mark.parametrize(
    ("transport", "options", "receipt"),
    [
        ("own_transports:function", {}, "function ada"),
        ("own_transports:Class", {"address": "there"}, "there ada"),
        ("own_transports:instance", {}, "made before ada"),
        ("memory", {}, "memory-1"),
    ],
)
def test_a_callable_a_class_and_an_instance_are_transports(
    own: None, transport: str, options: dict[str, Any], receipt: str
) -> None:
    assert made(transport, **options).send(a_message()) == receipt


@pytest.mark.parametrize(
    ("transport", "options", "field", "says"),
    [
        ("fax", {}, "transport", "there is no transport 'fax'"),
        (":function", {}, "transport", "there is no transport"),
        ("own_transports:", {}, "transport", "there is no transport"),
        ("no_such_module_here:send", {}, "transport", "cannot load"),
        ("own_transports:number", {}, "transport", "is neither a transport nor a function"),
        ("own_transports:NoSend", {}, "transport", "is neither a transport nor a function"),
        ("own_transports:function", {"a": 1}, "options", "no class"),
        ("own_transports:Class", {"adress": 1}, "options.adress", "address"),
        ("own_transports:Class", {"address": ""}, "options", "must not be empty"),
        ("console", {"colour": "red"}, "options.colour", "none"),
        ("file", {"pth": "w"}, "options.pth", "no such option; accepted: path"),
        ("file", {"path": 4711}, "options", ""),
        ("smtp", {"from": "mail@shop.example"}, "options.url", "is missing"),
        ("smtp", {"url": "smtp://localhost"}, "options.from", "is missing"),
        ("smtp", {"form": "mail@shop.example"}, "options.form", "no such option; accepted: from"),
        (f"{__name__}:Picky", {"colour": "red"}, "options.colour", "accepted: blue"),
        (f"{__name__}:Modelled", {"size": "red"}, "options.size", "is no whole number"),
    ],
)  # fmt: skip
def test_a_misconfigured_transport_names_its_field(
    own: None, transport: str, options: dict[str, Any], field: str, says: str
) -> None:
    error = refused(transport, **options)
    assert error.field == f"channels.post.{field}"
    assert says in f"{error.problem}; accepted: {error.accepted}"
    assert error.accepted


class Picky:
    """Names the option that it refuses itself."""

    def __init__(self, **options: Any) -> None:
        raise InvalidSettings("colour", str(options), "blue")

    def send(self, message: Message) -> str | None:
        raise TemporaryFailure(message.channel)


class Modelled(BaseModel):
    """Lets pydantic check its options."""

    size: int


LIBRARIES = [
    (transport, Requirement(line).name)
    for transport, (_, extra) in SHIPPED.items()
    for line in (EXTRAS[extra] if extra else ())
]


def test_the_image_has_what_each_transport_needs() -> None:
    [listed] = re.findall(r"\.whl\)\[([a-z,]+)\]", (ROOT / "Dockerfile").read_text())
    assert {extra for _, extra in SHIPPED.values() if extra} - set(listed.split(",")) == set()


@pytest.mark.parametrize(("transport", "library"), LIBRARIES)
def test_a_missing_library_is_named_with_its_extra(
    transport: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = f"dispatcher.transports.{transport}"
    for name in [name for name in sys.modules if name.split(".")[0] == library or ours in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    channel = ChannelSettings(transport=transport)
    with pytest.raises(InvalidSettings, match=f"needs {library}") as caught:
        load("hooks", channel, Settings.load())
    assert caught.value.field == "channels.hooks.transport"
    assert f"pip install 'quota-dispatcher[{transport}]'" in caught.value.accepted
    Checks({"hooks": channel})("hooks", "anybody", {"any": "thing"})


class Unclosable:
    def close(self) -> None:
        raise OSError("token=hunter2")


def test_a_transport_that_fails_to_close_keeps_no_other_open(
    caplog: pytest.LogCaptureFixture,
) -> None:
    closed: list[str] = []
    fine = SimpleNamespace(close=lambda: closed.append("fine"))
    base.close_all([object(), Unclosable(), fine])
    assert closed == ["fine"]
    assert "Unclosable was not closed: OSError" in caplog.text
    assert "hunter2" not in caplog.text
