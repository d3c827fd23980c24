"""Turns pydantic's errors about the configuration into field, problem and accepted values.

No value is quoted: any of them may be a secret.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from pydantic_core import ErrorDetails

_ALIKE = 0.85
_NO_SUCH = "there is no such setting"
_LENGTH = "seconds, or a number and a unit, such as '30 days'"
_SENTENCES = {
    "missing": ("is missing", "a value: it has no default"),
    "string_type": ("is no text", "a text"),
    "bool_type": ("is neither true nor false", "true or false"),
    "bool_parsing": ("is neither true nor false", "true or false"),
    "int_type": ("is no whole number", "a whole number"),
    "int_parsing": ("is no whole number", "a whole number"),
    "int_from_float": ("is no whole number", "a whole number"),
    "float_type": ("is no number", "a number"),
    "float_parsing": ("is no number", "a number"),
    "finite_number": ("is no finite number", "a finite number"),
    "time_delta_type": ("is no length", _LENGTH),
    "time_delta_parsing": ("is no length", _LENGTH),
    "path_type": ("is no path", "a path"),
    "tuple_type": ("is no list", "a list; in an environment variable, with commas between"),
    "dict_type": ("is no table", "a table"),
    "model_type": ("is no table", "a table"),
}
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def first_of(
    errors: Iterable[ErrorDetails], names: Mapping[str, Collection[str]]
) -> tuple[str, str, str]:
    """Return field, problem and accepted values of the error that explains most.

    ``names`` are the names of settings: at the top under ``""``, and by kind of table.
    """
    # A misspelt name is often missing under its right one.
    each = min(errors, key=lambda error: error["type"] != "extra_forbidden")
    path = [str(part) for part in each["loc"]]
    field = ".".join(path) or "settings"
    if each["type"] == "extra_forbidden":
        there = names.get(path[0] if len(path) > 1 else "", ())
        return field, _NO_SUCH, _like(path[-1], there)
    return field, *_sentence(each["type"], each.get("ctx", {}), each["msg"])


def misspelt(
    variables: Iterable[str], prefix: str, names: Collection[str]
) -> tuple[str, str, str] | None:
    """Return the same for a variable whose name is almost that of a setting, else None.

    Other variables with our prefix are ignored: Kubernetes sets some for a service of that name.
    """
    for variable in variables:
        name = variable.removeprefix(prefix).split("__")[0].lower()
        if variable.startswith(prefix) and name not in names:
            near = get_close_matches(name, names, 1, _ALIKE)
            if near:
                return variable, _NO_SUCH, prefix + near[0].upper()
    return None


def _like(name: str, there: Collection[str]) -> str:
    near = get_close_matches(name, there, 1)
    return near[0] if near else f"one of {', '.join(there)}"


def _sentence(kind: str, context: Mapping[str, Any], message: str) -> tuple[str, str]:
    if kind in _SENTENCES:
        return _SENTENCES[kind]
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        of_length = "timedelta" in str(context[key])  # all of ours are 0, and come as their repr
        return "is out of range", f"{words} {'0 seconds' if of_length else context[key]}"
    if kind in {"literal_error", "enum"}:
        return "is none of the words there are", str(context["expected"])
    if kind == "too_short":
        return "has too few entries", f"at least {context['min_length']}"
    return message[:1].lower() + message[1:], "what the reference of the settings says"
