"""Jinja2 with a budget of steps, and with errors that quote nothing of the data.

An administrator writes the templates; the data come from anywhere. The sandbox does not protect
from a hostile template; it keeps one that meets unforeseen data from running for long or filling
the memory.
Whatever returns much more than it reads is left out: there are few filters, no methods of texts,
and ``%`` and ``*`` for numbers only. The rest costs steps: for each turn of a loop, for each call,
and for the length of what it reads.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, ValuesView
from contextvars import ContextVar
from functools import wraps
from itertools import chain
from types import BuiltinMethodType, GeneratorType
from typing import Any

from jinja2 import (
    BaseLoader,
    StrictUndefined,
    Template,
    TemplateError,
    Undefined,
    UndefinedError,
    nodes,
    pass_context,
    pass_environment,
    pass_eval_context,
)
from jinja2.filters import FILTERS
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS

from dispatcher.errors import InvalidDraft, InvalidSettings

MOST_STEPS = 20_000
"""How many steps one part may take; a fifth of the characters that a body may have, if more."""
STEP = 100
"""How many characters are read for the price of a step; an entry of a list costs as much as ten."""
_ENTRY = 10
_MOST_BITS = 4_096
_MOST_DIGITS = 20

READERS = frozenset({
    "abs", "capitalize", "decimals", "dictsort", "e", "escape", "float", "forceescape", "int",
    "items", "join", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace",
    "reverse", "round", "safe", "select", "selectattr", "sort", "string", "sum", "title",
    "tojson", "trim", "truncate", "unique", "upper", "urlencode", "wordcount",
})  # fmt: skip
"""The filters that read all of what they are given."""
LOOKS = frozenset({"count", "d", "default", "first", "last", "length"})
"""Those that only look at it."""
_OVER_ENTRIES = frozenset({
    "join", "list", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "sort",
    "sum", "unique",
})  # fmt: skip
_COMPARE = frozenset({
    "!=", "<", "<=", "==", ">", ">=", "divisibleby", "eq", "equalto", "ge", "greaterthan", "gt",
    "le", "lessthan", "lower", "lt", "ne", "upper",
})  # fmt: skip
_LOOK = frozenset({
    "boolean", "defined", "even", "false", "float", "integer", "iterable", "mapping", "none",
    "number", "odd", "sequence", "string", "true", "undefined",
})  # fmt: skip
_GLOBALS = frozenset({"dict", "namespace", "range"})
_METHODS = frozenset({"get", "items", "keys", "values"})
_SCALARS = (bool, float, type(None), Undefined, GeneratorType, map)

_TURNS, _PAID, _SOUGHT, _TOLL = (f"{each} by the sandbox" for each in ("a", "b", "c", "d"))
_left: ContextVar[list[int]] = ContextVar("what is left, in characters")


class _BudgetExceeded(Exception):
    """The template takes more than it may."""


class _Refused(Exception):
    """The template does what none may. The text quotes nothing of the data."""


class CompiledText:
    """One text of a template, compiled: a subject, a text, a page. ``path`` names it in errors."""

    def __init__(self, path: str, template: Template, wanted: frozenset[str]) -> None:
        self._path = path
        self._template = template
        self._wanted = wanted

    def render(self, data: Mapping[str, Any], *, limit: int) -> str:
        """Return the text of this part with ``data``, of at most so many characters.

        Raises InvalidDraft, which names what is missing by the names in the template and shows
        nothing of the data.
        """
        problem = None
        most_steps = max(MOST_STEPS, limit // 5)
        steps = _left.set([most_steps * STEP])
        try:
            return self._text(data, limit)
        except _BudgetExceeded:
            problem = f"takes more than {most_steps} steps or {limit} characters"
        except _Refused as refused:
            problem = f"{refused}, which no template may"
        except UndefinedError:
            missing = ", ".join(sorted(self._wanted - data.keys())) or "a value that is not there"
            problem = f"needs {missing}"
        except Exception as error:  # noqa: BLE001 - filters may raise anything; it may quote data
            problem = f"cannot be rendered ({type(error).__name__})"
        finally:
            _left.reset(steps)
        raise InvalidDraft(
            "data", f"{self._path} {problem}", "a value for each name in the template"
        )

    def _text(self, data: Mapping[str, Any], limit: int) -> str:
        pieces: list[str] = []
        for piece in self._template.generate(dict(data)):
            pieces.append(piece)
            limit -= len(piece)
            if limit < 0:
                raise _BudgetExceeded
        return "".join(pieces)


class Sandbox(ImmutableSandboxedEnvironment):
    """What compiles the parts of a channel's templates; ``escapes`` for those that are HTML.

    No text in it may be longer than ``most``.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, escapes: bool, loader: BaseLoader | None, most: int) -> None:
        super().__init__(
            autoescape=escapes,
            undefined=StrictUndefined,
            finalize=self._put_out,
            loader=loader,
            auto_reload=False,
        )
        self._most = most
        self.globals = {name: self.globals[name] for name in _GLOBALS} | {"range": _range}
        tests: dict[str, Any] = {**TESTS}
        self.tests = {name: tests[name] for name in _LOOK} | {
            name: self._paying(tests[name], reads=True) for name in _COMPARE
        }
        known: dict[str, Any] = {**FILTERS} | {
            "decimals": _decimals,
            "join": self._join,
            "map": _map,
            "replace": self._replace,
            "round": _round,
            "sum": _sum,
            "tojson": _tojson,
            "trim": _trim,
        }
        self.filters = {
            **{
                name: self._paying(known[name], reads=True, of_entries=name in _OVER_ENTRIES)
                for name in READERS
            },
            **{name: self._paying(known[name], reads=False) for name in LOOKS},
            _TURNS: _turns,
            _PAID: self._paid,
            _SOUGHT: self._sought,
            _TOLL: _toll,
        }

    def compiled_text(self, path: str, source: str) -> CompiledText:
        """Compile a text of the settings, which call it ``path``. Raises InvalidSettings."""
        try:
            wanted = find_undeclared_variables(self.parse(source))
            return CompiledText(
                path, self.from_string(source), frozenset(wanted - self.globals.keys())
            )
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            problem = f"{error.message}, in line {line}" if line else f"{error.message}"
            raise InvalidSettings(path, problem, "a template of Jinja2") from None

    def call(self, context: Any, called: Any, /, *args: Any, **more: Any) -> Any:
        """Count the calls, by which macros could go on for ever; refuse the methods of values."""
        _spend(STEP)
        method = inspect.unwrap(called)  # Jinja2 wraps str.format
        of = getattr(method, "__self__", None)
        is_of_value = isinstance(of, str) or isinstance(method, BuiltinMethodType)
        if is_of_value and not (isinstance(of, dict) and method.__name__ in _METHODS):
            raise _Refused(f"calls {method.__name__}")
        if of is not None or isinstance(called, type):  # a macro only hands them on
            self._pay(*args, *more.values())
        return super().call(context, called, *args, **more)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Pay for a key that takes long to hash."""
        if not isinstance(argument, str | int):
            self._pay(argument)
        return super().getitem(obj, argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Calculate with numbers that stay small; put texts or lists together, nothing else."""
        _spend(STEP)
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length(), right.bit_length()
            if (bits[0] * right if operator == "**" else sum(bits)) > _MOST_BITS:
                raise _BudgetExceeded
        elif operator == "+":
            self._pay(left, right)
        elif not all(isinstance(each, int | float | Undefined) for each in (left, right)):
            raise _Refused(f"uses {operator} on what is no number")
        return super().call_binop(context, operator, left, right)

    def _paying(
        self, function: Callable[..., Any], *, reads: bool, of_entries: bool = False
    ) -> Callable[..., Any]:
        """Return a filter or a test that costs a step, and what is read."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0  # what Jinja2 hands in itself

        @wraps(function)
        def call(*args: Any, **more: Any) -> Any:
            _spend(STEP)
            if of_entries and isinstance(args[first], str):
                raise _Refused("takes a text for a list")  # each letter would be an object
            if reads:
                self._pay(*args[first:], *more.values())
            return function(*args, **more)

        return call

    @pass_context  # so that no constant is put out before there are steps
    def _put_out(self, context: Any, value: Any) -> Any:
        del context
        return self._paid(value)

    def _paid(self, value: Any) -> Any:
        """Let a value through that is to be read, at its price."""
        self._pay(value)
        return value

    def _sought(self, value: Any) -> Any:
        """Let a value through in which another is to be looked for."""
        return value if isinstance(value, Mapping) else self._paid(value)

    def _pay(self, *values: Any) -> None:
        """Pay for each character and each entry, also of what is in there.

        A list that holds one list twice, and so on, is as long as what would be read of it.
        """
        most, read = _left.get()[0], 0
        unread = list(values)
        while unread and read <= most:
            each = unread.pop()
            read += 1
            if isinstance(each, str):
                read += self._short(each)
            elif isinstance(each, Mapping):
                read += len(each) * _ENTRY
                if read <= most:
                    unread += chain(each.keys(), each.values())
            elif isinstance(each, Sequence | Set | ValuesView):
                read += len(each) * _ENTRY
                if read <= most and not isinstance(each, range):
                    unread += each
            elif isinstance(each, int):
                read += each.bit_length() // 8
            elif not isinstance(each, _SCALARS):
                raise _Refused(f"reads a {type(each).__name__}")
        _spend(read)

    def _short(self, text: str) -> int:
        """Return the length of a text that may be put out."""
        if len(text) > self._most:
            raise _BudgetExceeded
        return len(text)

    @pass_eval_context
    def _join(self, context: Any, items: Any, d: Any = "", attribute: Any = None) -> Any:
        entries = list(items)
        if len(entries) * len(str(d)) > self._most:
            raise _BudgetExceeded
        return FILTERS["join"](context, entries, d, attribute)

    @pass_eval_context
    def _replace(self, context: Any, text: Any, old: Any, new: Any, count: Any = None) -> Any:
        if str(text).count(str(old)) * len(str(new)) > self._most:
            raise _BudgetExceeded
        return FILTERS["replace"](context, text, old, new, count)

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        """Let everything be paid for: this is where Jinja2 lets a subclass see the tree."""
        for loop in source.find_all(nodes.For):
            loop.iter = self._through(_TURNS, loop.iter)
        for joined in source.find_all(nodes.Concat):
            joined.nodes = [self._through(_PAID, each) for each in joined.nodes]
        for compared in source.find_all(nodes.Compare):
            compared.expr = self._through(_PAID, compared.expr)
            for each in compared.ops:
                seeks = each.op in ("in", "notin")
                each.expr = self._through(_SOUGHT if seeks else _PAID, each.expr)
        for item in source.find_all(nodes.Getitem):
            if isinstance(item.arg, nodes.Slice):
                item.node = self._through(_PAID, item.node)
        for pair in source.find_all(nodes.Pair):
            pair.key = self._through(_PAID, pair.key)
        for repeated in source.find_all((nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)):
            self._take_toll(repeated)
        self._take_toll(source)
        return super()._generate(source, name, filename, defer_init)

    def _take_toll(self, repeated: Any) -> None:
        """Let plain text be paid for as well, each time that it is put out."""
        length = sum(len(each.data) for each in repeated.find_all(nodes.TemplateData))
        if length > STEP:
            line = repeated.lineno
            toll = self._through(_TOLL, nodes.Const(length, lineno=line))
            repeated.body.insert(0, nodes.Output([toll], lineno=line))

    def _through(self, name: str, value: Any) -> nodes.Filter:
        return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno, environment=self)


def _spend(characters: int) -> None:
    left = _left.get()
    left[0] -= characters
    if left[0] < 0:
        raise _BudgetExceeded


def _toll(characters: int) -> str:
    _spend(characters)
    return ""


def _turns(items: Iterable[Any]) -> Iterator[Any]:
    if isinstance(items, range):  # which were paid for
        yield from items
        return
    for each in items:
        _spend(STEP)
        yield each


def _range(*bounds: int) -> range:
    found = range(*bounds)
    _spend(len(found) * STEP)
    return found


@pass_context
def _map(context: Any, items: Any, name: Any = None, **more: Any) -> Any:
    """Take one attribute of each entry, or send each through a filter that needs nothing else."""
    if name is None:
        return FILTERS["map"](context, items, **more)
    if more:
        raise _Refused("gives a filter of map more than a value")
    return FILTERS["map"](context, items, name)


def _decimals(number: float, places: int = 2) -> str:
    if abs(places) > _MOST_DIGITS:
        raise _BudgetExceeded
    return f"{number:.{places}f}"


def _round(value: Any, precision: int = 0, method: Any = "common") -> Any:
    if abs(precision) > _MOST_DIGITS:
        raise _BudgetExceeded
    return FILTERS["round"](value, precision, method)


@pass_environment
def _sum(environment: Any, items: Any, attribute: Any = None) -> Any:
    return FILTERS["sum"](environment, items, attribute)


@pass_eval_context
def _tojson(context: Any, value: Any) -> Any:
    return FILTERS["tojson"](context, value)


def _trim(value: Any) -> Any:
    return FILTERS["trim"](value)
