"""The known bugs can be planted in the package as it is."""

from __future__ import annotations

import logging

import pytest

from tests.simulation import bugs as simulated
from tests.soak import seeded
from tests.soak.faults import BY_NAME
from tests.support.canaries import BODY, watched
from tests.support.environment import ROOT
from tests.support.judge import INVARIANTS
from tests.support.planting import Seams, planted, real

_ALL = {name: bug.seams for name, bug in simulated.BUGS.items()}
_ALL |= {name: bug.seams for name, bug in seeded.BUGS.items()}


@pytest.mark.parametrize("seams", _ALL.values(), ids=_ALL)
def test_a_bug_replaces_what_it_names_and_is_gone_afterwards(seams: Seams) -> None:
    before = [real(name) for name in seams]

    with planted(seams):
        assert not {*map(id, before)} & {id(real(name)) for name in seams}
    assert [real(name) for name in seams] == before


def test_each_bug_has_something_that_is_to_catch_it() -> None:
    assert not simulated.BUGS.keys() & seeded.BUGS.keys()
    invariants = {name.split()[0] for name in INVARIANTS}
    for bug in seeded.BUGS.values():
        assert bug.test or (bug.faults and bug.invariant in invariants)
        assert {*bug.faults} <= BY_NAME.keys()
        if bug.test:
            file, _, test = bug.test.partition("::")
            assert f"def {test}(" in (ROOT / file).read_text()


@pytest.fixture(autouse=True)
def no_log_tells_a_secret() -> None:
    """Let a log tell one here: it is found by the test itself."""


def test_a_secret_is_found_in_text_fields_and_traceback() -> None:
    log = logging.getLogger("dispatcher.somewhere")
    with watched() as leaks:
        log.debug("sent %s", BODY)
        log.warning("sent", extra={"body": {"text": BODY}})
        try:
            raise ValueError(BODY)  # noqa: TRY301 - it is the traceback that is wanted
        except ValueError:
            log.exception("not sent")
        log.warning("sent")
        logging.getLogger("mail.log").warning("the test's own server took %s", BODY)
    assert [leak.split(":")[0] for leak in leaks] == ["dispatcher.somewhere"] * 3
