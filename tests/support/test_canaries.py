"""What looks for secrets in the logs of every test finds them wherever they stand."""

from __future__ import annotations

import logging

import pytest

from tests.support.canaries import BODY, watched


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
    assert [each.split(":")[0] for each in leaks] == ["dispatcher.somewhere"] * 3
