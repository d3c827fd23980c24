"""The extras of the distribution: what a plain installation lacks, and how to install it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dispatcher.errors import MissingExtra

DISTRIBUTION = "quota-dispatcher"
"""The name of the distribution on PyPI. The package and the command are ``dispatcher``."""


def install_line(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


@contextmanager
def needs(extra: str, field: str, *, what: str = "", instead: str = "") -> Iterator[None]:
    """Raise MissingExtra where an import inside lacks a library of ``extra``.

    ``field`` is the setting or the command that needs it, ``what`` names the part of it, and
    ``instead`` is what helps without the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", __package__}:
            raise
        problem = f"{what} needs {missing}, which is not installed".lstrip()
        remedy = f"{install_line(extra)}, or {instead}" if instead else install_line(extra)
        raise MissingExtra(extra, field, problem, remedy) from error
