"""What the error numbers of MariaDB and MySQL mean. Their SQLSTATE is mostly "general error"."""

from __future__ import annotations

from sqlalchemy.exc import SQLAlchemyError

NOT_REACHED = frozenset({2002, 2003, 2005})
NO_DATABASE = 1049
TAKEN = 1062
"""The id or the key is there already."""

UNDONE = frozenset({1020, 1205, 1213})
"""Changed since the snapshot, a wait for a lock too long, deadlock."""

CHECKS = frozenset({3819, 4025})
"""A CHECK refused the row, of MySQL and of MariaDB."""

_NO_SAVEPOINT = 1305
_ENDED = frozenset({1020, 1213, _NO_SAVEPOINT})
# Statements carry their values, and an error may quote either; these quote neither.
_QUOTES_NOTHING = UNDONE | {
    *(1040, 1044, 1045, 1046, 1049, 1053, 1114, 1129, 1130, 1142, 1146, 1153),
    *(1203, 1226, 1290, 1305, 1317, 1792, 1836, 1927, 1969, 3024, 3572, 4031),
}


def of(error: BaseException | None) -> int | None:
    """Return the number that the server or the driver gave an error."""
    given = getattr(error, "orig", None)
    numbers = [each for each in getattr(given, "args", ())[:1] if isinstance(each, int)]
    return numbers[0] if numbers else None


def quotes(error: SQLAlchemyError) -> bool:
    """Whether the text of an error may quote what was to be stored."""
    number = of(error)
    return number is not None and not (2000 <= number < 3000 or number in _QUOTES_NOTHING)  # noqa: PLR2004 - the client's own


def ended(error: SQLAlchemyError) -> SQLAlchemyError | None:
    """Return what ended the whole transaction that ``error`` came from, if something did.

    What undoes a transaction takes its savepoints along; the error is then that they are missing.
    """
    each: BaseException | None = error
    if of(each) == _NO_SAVEPOINT:
        while each is not None and (of(each) in {None, _NO_SAVEPOINT}):
            each = each.__context__
        return each if isinstance(each, SQLAlchemyError) else error
    return error if of(each) in _ENDED else None
