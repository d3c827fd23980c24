"""The formats of the logs of `worker` and `beat`."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

from celery.signals import after_setup_logger, after_setup_task_logger

from dispatcher.settings import LogFormat
from dispatcher.telemetry.journal import FIELDS
from dispatcher.times.send_time import as_text


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON.

    ``at`` (ISO 8601, UTC), ``level``, ``logger``, ``process``, ``text``, for a transition of a
    message its fields (:data:`dispatcher.telemetry.journal.FIELDS`), and ``traceback`` where there
    is one. It leaves out attributes of other libraries, which may contain anything.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        at = datetime.fromtimestamp(record.created, UTC)
        line = {
            "at": as_text(at),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "text": record.getMessage(),
        }
        line |= {name: vars(record)[name] for name in FIELDS if name in vars(record)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def write_logs(log_format: LogFormat) -> None:
    """Make Celery set up its logs in this format."""
    if log_format == "json":
        after_setup_logger.connect(_write_json, weak=False)
        after_setup_task_logger.connect(_write_json, weak=False)


def _write_json(logger: logging.Logger, **_: object) -> None:
    for handler in logger.handlers:
        handler.setFormatter(JsonFormatter())
