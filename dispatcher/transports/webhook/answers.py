"""What an HTTP answer means for a message."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from dispatcher.errors import PerhapsSent, PermanentFailure, TemporaryFailure
from dispatcher.transports.webhook.connections import Answer

LONGEST_WAIT = timedelta(days=1)
"""Longest wait that a server may ask for: a date in the wrong year stops nothing for a year."""
_ASKS_TO_WAIT = (429, 503)
_TEMPORARY = (408, 425, 429)
_UNAUTHORIZED = 401
_REFUSED = "it does not know the channel's credentials"
_UNTIL_MENDED = timedelta(minutes=1)
"""How long a channel rests before credentials are tried again that somebody must mend."""
_GATEWAY_TIMEOUT = 504
_REQUEST_IDS = ("x-request-id", "request-id", "x-correlation-id", "x-amzn-requestid", "cf-ray")
_LONGEST_ID = 100
_SECONDS = re.compile(r"[0-9]{1,9}")


def receipt_of(answer: Answer, *, now: datetime, closes_channel: bool) -> str:
    """Return the receipt of a message that was taken: the status, and an id of the request.

    Raises PermanentFailure, TemporaryFailure or PerhapsSent. ``closes_channel``: whether there is
    one server for the whole channel, so that a wait it asks for, or credentials it refuses, are
    those of all messages. No text quotes the answer, which may quote
    the message.
    """
    status = answer.status
    if 200 <= status < 300:  # noqa: PLR2004 - RFC 9110: successful
        name = next((each for each in _REQUEST_IDS if answer.headers.get(each)), None)
        return f"{status} {name}={answer.headers[name][:_LONGEST_ID]}" if name else str(status)
    said = f"the server answered {status}"
    if 300 <= status < 400:  # noqa: PLR2004 - redirection
        raise PermanentFailure(f"{said}, a redirect; none is followed: give the final URL")
    if status == _GATEWAY_TIMEOUT:
        raise PerhapsSent(f"{said}: a gateway got no answer in time")
    if status in _TEMPORARY or 500 <= status < 600:  # noqa: PLR2004 - server error
        wait = _wait(answer.headers.get("retry-after"), now) if status in _ASKS_TO_WAIT else None
        closes = closes_channel and wait is not None
        raise TemporaryFailure(said, wait, closes_channel=closes)
    if status == _UNAUTHORIZED and closes_channel:
        raise TemporaryFailure(f"{said}: {_REFUSED}", _UNTIL_MENDED, closes_channel=True)
    if 400 <= status < 500:  # noqa: PLR2004 - client error
        raise PermanentFailure(said)
    raise PerhapsSent(f"{said}, which is no answer to a request")


def _wait(text: str | None, now: datetime) -> timedelta | None:
    """Return the wait that Retry-After asks for: seconds, or the date of its end."""
    if text is None:
        return None
    if _SECONDS.fullmatch(text.strip()):
        wait = timedelta(seconds=int(text))
    else:
        try:
            until = parsedate_to_datetime(text)
        except (ValueError, OverflowError):
            return None
        wait = (until if until.tzinfo else until.replace(tzinfo=UTC)) - now
    return min(max(wait, timedelta(0)), LONGEST_WAIT)
