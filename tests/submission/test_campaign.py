"""A campaign is a label: stored, found by, counted, and part of what a repeated key must repeat."""

from __future__ import annotations

import pytest

from dispatcher import InvalidDraft, Message, Status
from tests.support.house import House, draft


def test_messages_of_a_campaign_are_found_together(house: House) -> None:
    ada = house.submit("ada", campaign="summer")
    house.submit("ben", campaign="winter")
    house.submit("cyd")
    many = [draft(f"r{number}", campaign="summer") for number in range(3)]
    assert house.dispatcher.plan(many).accepted == 3
    found = [each for each in house.dispatcher.submit_many(many) if isinstance(each, Message)]
    assert [each.campaign for each in found] == ["summer"] * 3
    assert [*house.dispatcher.select(campaign="summer", oldest_first=True)] == [ada, *found]
    assert [*house.dispatcher.list(campaign="summer", limit=2)] == found[:0:-1]
    assert house.dispatcher.get(ada.id).campaign == "summer"
    house.dispatcher.cancel(ada.id)
    assert house.dispatcher.counts(campaign="summer") == {
        "memory": {Status.SCHEDULED: 3, Status.CANCELLED: 1}
    }
    assert house.dispatcher.counts(campaign="autumn") == {}
    assert house.dispatcher.count(campaign="summer", status="scheduled") == 3


@pytest.mark.parametrize("campaign", ["", "c" * 65, "a\nb", " a", 7])
def test_a_label_that_is_none_is_refused(house: House, campaign: object) -> None:
    with pytest.raises(InvalidDraft, match="campaign"):
        house.submit("ada", campaign=campaign)
    assert house.members() == {}
    assert house.submit("ada", campaign="c" * 64).campaign == "c" * 64
