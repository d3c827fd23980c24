"""A transport whose library is not installed says which extra brings it."""

from __future__ import annotations

import sys

import pytest

from dispatcher import Channel, InvalidSettings, Settings
from dispatcher.transports import Checks, load

LIBRARIES = [("webhook", "httpcore"), ("webhook", "standardwebhooks"), ("apprise", "apprise")]


@pytest.mark.parametrize(("transport", "library"), LIBRARIES)
def test_a_missing_library_is_named_with_its_extra(
    transport: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = f"dispatcher.transports.{transport}"
    for name in [each for each in sys.modules if each.split(".")[0] == library or ours in each]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    channel = Channel(transport=transport)
    with pytest.raises(InvalidSettings, match=f"needs {library}") as caught:
        load("hooks", channel, Settings.load())
    assert caught.value.field == "channels.hooks.transport"
    assert f"pip install 'dispatcher[{transport}]'" in caught.value.accepted
    Checks({"hooks": channel})("hooks", "anybody", {"any": "thing"})
