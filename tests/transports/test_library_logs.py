"""What libraries say during a send is not written."""

from __future__ import annotations

import logging
import threading

import pytest

from dispatcher.transports.connections import quiet, silence


def test_only_the_thread_that_is_quiet_writes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logger = logging.getLogger("quiet_for_tests.inner")
    for _ in range(3):
        silence("quiet_for_tests")
    assert len(logger.filters) == 1
    with quiet():
        with quiet():
            logger.error("one")
        logger.error("two")
        thread = threading.Thread(target=logger.error, args=("of another thread",))
        thread.start()
        thread.join()
        logging.getLogger("loud_for_tests").error("of another library")
    logger.error("afterwards")
    said = [each.getMessage() for each in caplog.records]
    assert said == ["of another thread", "of another library", "afterwards"]
