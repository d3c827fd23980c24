"""A worker that ends says good-bye to its providers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.environment import CHANNEL, SERVICES, Maker
from tests.support.ledger import Ledger, read


class Closing(Ledger):
    """A ledger that notes which processes closed it, and how many sends it had by then."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._closed = Path(f"{path}.closed")
        self._written = Path(path)

    def close(self) -> None:
        with self._closed.open("a") as file:
            file.write(f"{os.getpid()} {len(read(self._written))}\n")


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_worker_that_ends_closes_its_transports_after_its_sends(
    environment: Maker, folder: Path
) -> None:
    options = {"path": str(folder / "ledger")}
    channels = {CHANNEL: {"transport": f"{__name__}:Closing", "options": options}}
    running = environment(
        services={"worker": SERVICES["worker"], "beat": SERVICES["beat-1"]}, channels=channels
    )
    running.submit("ada")
    running.wait_until_ended()
    sends = running.settings.data_dir / f"sends.{running.settings.namespace}"
    assert len([*sends.iterdir()]) == 1
    running.stop("worker")
    assert not sends.exists() or [*sends.iterdir()] == [], "nothing is left for the rescue"
    [closed] = (folder / "ledger.closed").read_text().splitlines()[-1:]
    assert closed.split()[1] == "2", "a send begun and ended"
    grace = f"end within {running.settings.stop_grace.total_seconds():g} s"
    assert grace in (folder / "worker.log").read_text()
