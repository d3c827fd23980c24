"""When a zone says something and when it says nothing, and what counts as a local time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import pytest

from dispatcher import InvalidSendTime, Settings
from dispatcher.message import Draft
from dispatcher.submission import ValidDraft, schedule
from dispatcher.times import send_time
from tests.support.clock import NOON

BERLIN = "Europe/Berlin"
HOUR = timedelta(hours=1)


class NoOffset(tzinfo):
    """Says nothing: Python counts a datetime with it as naive."""

    def utcoffset(self, _: datetime | None) -> timedelta | None:
        return None

    def dst(self, _: datetime | None) -> timedelta | None:
        return None

    def tzname(self, _: datetime | None) -> str | None:
        return "?"


DISGUISED = datetime(2027, 1, 1, 12, tzinfo=NoOffset())


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings.load(data_dir=tmp_path_factory.mktemp("data"))


def scheduled(settings: Settings, **asked: Any) -> ValidDraft:
    draft = Draft(**{"channel": "file", "recipient": "ada", "body": {}} | asked)
    return schedule(draft, settings=settings, now=NOON)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"zone": "No/Where"}, "zone"),
        ({"zone": ""}, "zone"),
        ({"fold": 0}, "fold"),
        ({"fold": 1}, "fold"),
        ({"fold": 7}, "fold"),
        ({"zone": BERLIN, "fold": 1}, "fold"),
        ({"zone": "No/Where", "fold": 1}, None),
    ],
    ids=str,
)
def test_an_unknown_zone_or_a_fold_with_a_length_from_now_is_refused(
    settings: Settings, given: dict[str, Any], field: str | None
) -> None:
    with pytest.raises(InvalidSendTime) as caught:
        scheduled(settings, send_in=HOUR, **given)
    assert caught.value.field in ({field} if field else {"zone", "fold"})
    assert caught.value.accepted


def test_a_zone_for_another_local_time_is_taken_with_a_length_from_now(settings: Settings) -> None:
    local = "2026-11-20T18:00"
    instant = datetime(2026, 11, 20, 17, tzinfo=UTC)
    draft = scheduled(settings, send_in=HOUR, zone=BERLIN, expires_at=local)
    assert draft.expires_at == instant
    draft = scheduled(settings, send_in=HOUR, zone=BERLIN, on_conflict="shift", latest=local)
    assert draft.latest == instant
    draft = scheduled(settings, send_in=HOUR, zone=BERLIN, fold=0, expires_at=local)
    assert draft.expires_at == instant


def test_a_length_from_now_needs_no_zone_and_is_not_moved_by_one(settings: Settings) -> None:
    assert scheduled(settings, send_in=HOUR).send_at == NOON + HOUR
    draft = scheduled(settings, send_in=HOUR, zone=BERLIN)
    assert (draft.send_at, draft.zone) == (NOON + HOUR, BERLIN)
    assert draft.terms.zone == BERLIN, "its quiet hours and local quotas go by it"


def test_a_datetime_whose_zone_says_nothing_is_a_local_time(settings: Settings) -> None:
    with pytest.raises(InvalidSendTime, match="neither an offset nor a zone"):
        send_time.parse(DISGUISED)
    with pytest.raises(InvalidSendTime):
        scheduled(settings, send_at=DISGUISED)
    with pytest.raises(InvalidSendTime):
        scheduled(settings, send_in=HOUR, expires_at=DISGUISED)
    instant = datetime(2027, 1, 1, 11, tzinfo=UTC)
    assert send_time.parse(DISGUISED, zone=BERLIN) == instant
    assert scheduled(settings, send_at=DISGUISED, zone=BERLIN).send_at == instant
    assert scheduled(settings, send_in=HOUR, expires_at=DISGUISED, zone=BERLIN).expires_at == (
        instant
    )


def test_what_a_clock_change_skips_or_repeats_is_told_in_its_zone_also_in_disguise() -> None:
    with pytest.raises(InvalidSendTime, match="skipped"):
        send_time.parse(datetime(2027, 3, 28, 2, 30, tzinfo=NoOffset()), zone=BERLIN)
    twice = datetime(2027, 10, 31, 2, 30, tzinfo=NoOffset())
    with pytest.raises(InvalidSendTime, match="happens twice"):
        send_time.parse(twice, zone=BERLIN)
    first, second = (send_time.parse(twice, zone=BERLIN, fold=fold) for fold in (0, 1))
    assert second - first == HOUR
