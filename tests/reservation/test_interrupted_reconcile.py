"""A sweep that dies while it settles a hold and an orphan together leaves both to the next one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatcher.message import new_id
from dispatcher.reservation import Terms
from tests.submission.test_late_duplicates import Died, age_pending
from tests.support.all_windows import pending_entries, promised, windows_of
from tests.support.doubles import Between, raising
from tests.support.house import FAR, House

HOUR = timedelta(hours=1)
TERMS = Terms.plain("ada")


def test_a_place_that_is_looked_at_for_its_hold_is_settled_by_a_later_sweep(house: House) -> None:
    message = house.submit(send_at=FAR)
    age_pending(house)
    house.parts.reconciler.reconcile()
    house.parts.windows.move(message.id, terms=TERMS, send_at=FAR + HOUR)  # and its mover died
    house.parts.windows.reserve(new_id(), terms=TERMS, send_at=FAR + 2 * HOUR)
    age_pending(house)

    sweep = vars(house.parts.reconciler)
    real = sweep["_windows"]
    sweep["_windows"] = Between(real, after={"places": raising(Died())})
    with pytest.raises(Died):
        house.parts.reconciler.reconcile()
    sweep["_windows"] = real
    house.parts.reconciler.reconcile()

    assert windows_of(house) == promised(house)
    assert not pending_entries(house)
