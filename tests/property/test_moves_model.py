"""All that may happen while one message is moved, searched in a model of the protocol.

What the scripts and the use cases really do is tested elsewhere; here their order is. Larger
searches: ``python -m tests.support.moves_search``.
"""

from __future__ import annotations

import pytest

from tests.support.moves_model import LAYOUTS, Moves, Protocol, Scripts
from tests.support.moves_search import House, Search, Turns
from tests.support.soak import a_third_of

ONE, PAIR, TWO, TWICE = "one window", "two windows of a group", "two shards", "own shard twice"

HOUSES = [
    House(ONE, (1, 2), turns=Turns(ticks=2, sweeps=1)),
    House(ONE, (1, 1), turns=Turns(ticks=2, sweeps=1)),
    House(ONE, (1, 0), turns=Turns(ticks=2, sweeps=1)),
    House(ONE, (1, 2), turns=Turns(ticks=3, copies=1)),
    House(ONE, (1, 2), turns=Turns(ticks=1, bookings=1, rebuilds=1)),
    House(ONE, (1,), turns=Turns(ticks=3, sweeps=2, copies=1)),
    House(ONE, (1,), turns=Turns(ticks=3, sweeps=2, bookings=1, rebuilds=1)),
    House(ONE, (1,), turns=Turns(ticks=2, sweeps=1, cancels=1)),
    House(PAIR, (1, 2), turns=Turns(ticks=3)),
    House(PAIR, (1,), turns=Turns(ticks=2, sweeps=2, copies=1)),
    House(PAIR, (1,), turns=Turns(ticks=2, sweeps=1, bookings=1, rebuilds=1)),
    House(TWO, (1, 2), turns=Turns(ticks=2)),
    House(TWO, (1,), turns=Turns(ticks=1, sweeps=1, copies=1)),
    House(TWO, (1,), turns=Turns(ticks=1, bookings=1, rebuilds=1)),
    House(TWICE, (1,), turns=Turns(ticks=2, sweeps=1)),
    House(TWICE, (1,), turns=Turns(ticks=1, cancels=1)),
]
MUTANTS = {
    "the sweep does not bar moves": House(
        ONE, (1,), turns=Turns(ticks=1, sweeps=1), protocol=Protocol(sweep_bars=False)
    ),
    "the sweep does not look beside what it finds": House(
        TWO,
        (1,),
        turns=Turns(ticks=2, sweeps=1, rebuilds=1),
        protocol=Protocol(sweep_looks_beside=False),
    ),
    "take does not compare tokens": House(
        ONE, (1, 2), turns=Turns(), protocol=Protocol(take_compares_tokens=False)
    ),
    "the windows of a shard are told as one": House(
        TWICE, (1,), turns=Turns(), protocol=Protocol(windows_are_told_singly=False)
    ),
    "a hold can be taken for ever": House(
        ONE, (1, 2), turns=Turns(ticks=3), protocol=Protocol(holds_have_a_life=False)
    ),
    "the new place is taken before all shards have it": House(
        TWO,
        (1,),
        turns=Turns(ticks=1, bookings=2, rebuilds=1),
        protocol=Protocol(take_waits_for_all_shards=False),
    ),
    "the change of the row is not guarded": House(
        ONE, (1, 2), turns=Turns(ticks=1, sweeps=1), protocol=Protocol(change_is_guarded=False)
    ),
    "what is held again is taken without a look at the row": House(
        ONE, (1, 2), turns=Turns(ticks=3), protocol=Protocol(mover_looks_again=False)
    ),
}
"""Without any one of these the protocol is broken, and the search must find that."""


def name_of(house: House) -> str:
    turns = (f"{count} {what}" for what, count in house.turns._asdict().items() if count)
    return f"{house.layout}, wishes {house.wishes}, {', '.join(turns)}"


@pytest.mark.parametrize("house", a_third_of(HOUSES), ids=name_of)
def test_the_time_of_the_row_always_has_a_place_and_two_sweeps_put_all_right(house: House) -> None:
    found = Search(house).run()

    assert not found.broken, str(found)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_search_finds_a_protocol_that_lacks_one_thing(mutant: str) -> None:
    found = Search(MUTANTS[mutant]).run()

    assert found.broken, f"{mutant}: {found}"
    assert found.story[0] == "m1 reads the row: time 0, token 0"


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS)
def test_with_that_thing_the_same_house_is_whole(mutant: str) -> None:
    whole = House(MUTANTS[mutant].layout, MUTANTS[mutant].wishes, turns=MUTANTS[mutant].turns)

    found = Search(whole).run()

    assert not found.broken, str(found)


def test_the_searches_come_to_every_step() -> None:
    houses = (
        House(TWO, (1,), turns=Turns(ticks=1, bookings=1, rebuilds=1)),
        House(ONE, (1, 0), turns=Turns(cancels=1)),
    )
    scripts = Scripts(LAYOUTS[TWO], Protocol())

    reached = frozenset[str]().union(*(Search(house).run().steps for house in houses))

    assert Moves(scripts).steps - reached == {"kept"}  # that takes two movers and a rebuild
