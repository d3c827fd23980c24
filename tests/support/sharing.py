"""How the tests are shared among the processes of a run with ``--dist loadfile``.

Files are begun in the order of their names, but those of ``tests/acceptance``, where a test takes
seconds, and those in ``APART`` come first, so that no process waits long for another's last file.
(By xdist's own order files with many tests come first; here these are the quick ones.)

What starts whole environments has deadlines to keep. So the files that do count as one, and so do
those that type commands: beside other tests there is at most one of each at a time. The tests of a
file in ``APART`` take a minute each, and several processes share them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

_WHOLE = "tests/acceptance/"
APART = ("tests/simulation/test_simulation.py", "tests/web/test_openapi.py")
TYPE_COMMANDS = tuple(f"{_WHOLE}test_{name}.py" for name in ("tutorial", "up"))


def shared_as(file: str) -> str:
    """Name the tests that run one after another, in one process, with those of a file."""
    if not file.startswith(_WHOLE):
        return file
    return "commands" if file in TYPE_COMMANDS else "environments"


def begins_late(item: pytest.Item) -> bool:
    """Whether a test begins after those that take long."""
    return not item.nodeid.startswith((_WHOLE, *APART))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Answer xdist, if it is to share whole files."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # noqa: PLC0415 - a run may be without xdist

    class Sharing(LoadFileScheduling):  # type: ignore[misc]  # xdist is not typed
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return nodeid if file in APART else shared_as(file)

    config.option.loadscopereorder = False
    return Sharing(config, log)
