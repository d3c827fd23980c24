"""What the clocks of a zone show when: skipped and repeated times, and where offsets change."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import import_module, resources
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

import pytest

from dispatcher.errors import InvalidValue, quoted
from dispatcher.times import zones
from dispatcher.times.zones import DAY_MS
from tests.support.processes import ran


@cache
def changes_of_all_zones() -> dict[str, tuple[int, ...]]:
    """The listed changes of the zones, in seconds since 1970, one name for each set of rules."""
    names: dict[bytes, tuple[str, tuple[int, ...]]] = {}
    for name in sorted(available_timezones()):
        file = resources.files("tzdata") / "zoneinfo" / name
        if file.is_file():
            data = file.read_bytes()
            names[data] = (name, tuple(_listed_changes(data)))
    return dict(names.values())


def _listed_changes(data: bytes) -> Iterator[int]:
    """Read a TZif file (RFC 9636): the second block holds 64-bit times."""
    isut, isstd, leap, time, kind, char = struct.unpack_from(">6l", data, 20)
    second = 44 + 4 * time + time + 6 * kind + char + 8 * leap + isstd + isut
    count = struct.unpack_from(">6l", data, second + 20)[3]
    yield from struct.unpack_from(f">{count}q", data, second + 44)


@pytest.mark.parametrize(("system", "offset"), [("2020a", -7), ("9999a", 0)])
def test_the_newer_tz_database_counts(tmp_path: Path, system: str, offset: int) -> None:
    """A process whose system has one version, in which Vancouver has the rules of UTC."""
    folder = tmp_path / "America"
    folder.mkdir()
    rules = (resources.files("tzdata") / "zoneinfo" / "UTC").read_bytes()
    (folder / "Vancouver").write_bytes(rules)
    (tmp_path / "tzdata.zi").write_text(f"# version {system}\n")
    code = (
        "from datetime import *; from dispatcher.times.zones import *; import zoneinfo\n"
        "offset = datetime(2024, 7, 1, tzinfo=rules('America/Vancouver')).utcoffset()\n"
        "print(offset // timedelta(hours=1), database().version, rules('Europe/Berlin'))\n"
        "print(zoneinfo.TZPATH)"
    )
    env = os.environ | {"PYTHONTZPATH": str(tmp_path)}
    shown = ran(sys.executable, "-c", code, env=env, check=True, timeout=60).stdout
    version = max(system, import_module("tzdata").IANA_VERSION)
    assert shown == f"{offset} {version} Europe/Berlin\n('{tmp_path}',)\n"


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "local", "Mars/Olympus", "Europe/Berlin ", "../../etc/passwd", "/etc/localtime"),
        *("Europe", "Europe/", "Europe//Berlin", "+01:00", "tzdata.zi", "x" * 5_000, "Evropa/Ž"),
        *("localtime", "posixrules", "Factory", "posix/Europe/Berlin", "right/Europe/Berlin"),
        *(None, 1, True, b"Europe/Berlin", UTC, ZoneInfo("UTC")),
    ],
)
def test_anything_else_is_refused_under_the_name_of_its_field(name: Any) -> None:
    with pytest.raises(InvalidValue) as refused:
        zones.rules(name)
    assert refused.value.field == "zone"
    assert quoted(name) in refused.value.problem
    with pytest.raises(InvalidValue) as refused:
        zones.rules(name, field="quiet_zone")
    assert refused.value.field == "quiet_zone"


def test_no_zone_changes_its_offset_twice_within_a_day() -> None:
    changes = changes_of_all_zones()
    assert len(changes) > 300
    near = {
        name: (earlier, later)
        for name, listed in changes.items()
        for earlier, later in pairwise(listed)
        if later - earlier <= DAY_MS // 1_000
    }
    assert not near


def test_every_change_of_every_zone_is_found() -> None:
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    for name, listed in changes_of_all_zones().items():
        zone = ZoneInfo(name)
        for change in (second for second in listed if second >= 0):
            at = epoch + timedelta(seconds=change)
            before = (at - timedelta(seconds=1)).astimezone(zone).utcoffset()
            after = at.astimezone(zone).utcoffset()
            pieces = zones.pieces(zone, (change - 10) * 1_000, (change + 10) * 1_000)
            expected = [
                ((change - 10) * 1_000, change * 1_000, before),
                (change * 1_000, (change + 10) * 1_000, after),
            ]
            if before == after:
                expected = [((change - 10) * 1_000, (change + 10) * 1_000, after)]
            assert [(*ends, timedelta(milliseconds=offset)) for *ends, offset in pieces] == expected
