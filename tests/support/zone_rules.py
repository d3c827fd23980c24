"""Other rules of zones, as a new tz database has them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from zoneinfo import ZoneInfo

import pytest

from dispatcher.times import zones


def change_rules(monkeypatch: pytest.MonkeyPatch, changed: Mapping[str, str | None]) -> None:
    """Give zones the rules of others, or, by None, take them away."""

    def read(name: str) -> ZoneInfo:
        other = changed.get(name, name)
        if other is None:
            raise LookupError(name)
        with (resources.files("tzdata") / "zoneinfo" / other).open("rb") as file:
            return ZoneInfo.from_file(file, key=name)

    monkeypatch.setattr(zones, "_read", read)
