"""What libraries say during a send is not written."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

from dispatcher.transports.library_logs import quiet, silence

LOGGERS = """
import importlib, logging
from dispatcher.transports.webhook import WebhookTransport

WebhookTransport()
importlib.import_module("httpcore._sync.http11")
roots = {"httpcore", "h11"}
for name, each in logging.root.manager.loggerDict.items():
    if name.split(".")[0] in roots and isinstance(each, logging.Logger) and not each.filters:
        print(name)
"""


def test_only_the_thread_that_is_quiet_writes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logger = logging.getLogger("quiet_for_tests.inner")
    silence("quiet_for_tests")
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


def test_a_filter_is_added_once() -> None:
    for _ in range(3):
        silence("quiet_for_tests")
    assert len(logging.getLogger("quiet_for_tests").filters) == 1


def test_no_logger_of_the_libraries_of_webhooks_is_left_out() -> None:
    found = subprocess.run(
        [sys.executable, "-c", LOGGERS], check=True, capture_output=True, text=True, timeout=60
    )
    assert found.stdout == ""
