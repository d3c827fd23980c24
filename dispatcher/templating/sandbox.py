"""Jinja2, kept from hanging a submit and from telling what it was given.

A template is written by who writes the settings, its data by anybody. So the sandbox is no wall
against templates; it keeps one that meets unforeseen data from running for long or filling the
memory: the turns of its loops, its calls and its output are counted, and a step that would make
much of little is not done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import BaseLoader, StrictUndefined, Template, TemplateError, UndefinedError, nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dispatcher.errors import InvalidDraft, InvalidSettings
from dispatcher.templating import lengths

MOST_STEPS = 20_000
"""How many turns of loops and calls one part may take."""
_MOST_BITS = 4_096
_COUNTED = "counted by the sandbox"
_SHORT = "measured by the sandbox"
_left: ContextVar[list[int]] = ContextVar("steps left")


class _TooMuch(Exception):
    """The template takes more than it may."""


class Part:
    """One text of a template, compiled: a subject, a text, a page. ``path`` names it in errors."""

    def __init__(self, path: str, template: Template, wanted: frozenset[str]) -> None:
        self._path = path
        self._template = template
        self._wanted = wanted

    def render(self, data: Mapping[str, Any], *, at_most: int) -> str:
        """Return the text of this part with ``data``, of at most so many characters.

        Raises InvalidDraft, which names what is missing by the names in the template and shows
        nothing of the data.
        """
        problem = None
        steps = _left.set([MOST_STEPS])
        try:
            return self._text(data, at_most)
        except _TooMuch:
            problem = f"takes more than {MOST_STEPS} steps or {at_most} characters"
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

    def _text(self, data: Mapping[str, Any], at_most: int) -> str:
        pieces: list[str] = []
        for piece in self._template.generate(dict(data)):
            pieces.append(piece)
            at_most -= len(piece)
            if at_most < 0:
                raise _TooMuch
        return "".join(pieces)


class Sandbox(ImmutableSandboxedEnvironment):
    """What compiles the parts of a channel's templates; ``escapes`` for those that are HTML."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, escapes: bool, loader: BaseLoader | None, most: int) -> None:
        super().__init__(
            autoescape=escapes,
            undefined=StrictUndefined,
            finalize=self._short,
            loader=loader,
            auto_reload=False,
        )
        self._most = most
        for name, length in lengths.FILTERS.items():
            self.filters[name] = self._measured(self.filters[name], length)
        self.filters[_COUNTED] = _counted
        self.filters[_SHORT] = self._short
        self.globals["range"] = _range
        del self.globals["lipsum"]

    def part(self, path: str, source: str) -> Part:
        """Compile a text of the settings, which call it ``path``. Raises InvalidSettings."""
        try:
            wanted = find_undeclared_variables(self.parse(source))
            return Part(path, self.from_string(source), frozenset(wanted - self.globals.keys()))
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            problem = f"{error.message}, in line {line}" if line else f"{error.message}"
            raise InvalidSettings(path, problem, "a template of Jinja2") from None

    def call(self, context: Any, called: Any, /, *args: Any, **more: Any) -> Any:
        """Count the calls, by which macros could go on for ever; measure those of texts."""
        _spend()
        method = getattr(called, "__wrapped__", called)  # Jinja2 wraps str.format
        of = getattr(method, "__self__", None)
        if isinstance(of, str) and (length := lengths.METHODS.get(method.__name__)):
            self._measure(length, of, *args, **more)
        return super().call(context, called, *args, **more)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse sums, products and powers that would fill the memory."""
        if operator != "%" and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length(), right.bit_length()
            if (bits[0] * right if operator == "**" else sum(bits)) > _MOST_BITS:
                raise _TooMuch
        elif operator == "%" and isinstance(left, str):
            self._measure(lengths.by_percent, left, right)
        elif operator == "+" and not isinstance(left, int | float):
            self._short(left)
            self._short(right)
        elif operator == "*":
            for times, each in ((left, right), (right, left)):
                if isinstance(times, int) and not isinstance(each, float):
                    self._check_length(times * len(each))
        return super().call_binop(context, operator, left, right)

    def _measured(self, function: Callable[..., Any], length: lengths.Length) -> Callable[..., Any]:
        """Return a filter that makes no more than may be put out."""
        first = 1 if hasattr(function, "jinja_pass_arg") else 0  # what Jinja2 hands in itself

        @wraps(function)
        def call(*args: Any, **more: Any) -> Any:
            self._measure(length, *args[first:], **more)
            return function(*args, **more)

        return call

    def _measure(self, length: lengths.Length, *args: Any, **more: Any) -> None:
        try:
            made = length(*args, **more)
        except (TypeError, ValueError, AttributeError):
            return  # wrongly called, and refused as such by what is called
        self._check_length(made)

    def _short(self, value: Any) -> Any:
        """Let a value through that is short enough to be put out, or to be put together."""
        if isinstance(value, str | list | tuple):
            self._check_length(len(value))
        return value

    def _check_length(self, length: int) -> None:
        if length > self._most:
            raise _TooMuch

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        """Count the turns of every loop: this is where Jinja2 lets a subclass see the tree."""
        for loop in source.find_all(nodes.For):
            loop.iter = self._through(_COUNTED, loop.iter)
        for joined in source.find_all(nodes.Concat):
            joined.nodes = [self._through(_SHORT, each) for each in joined.nodes]
        return super()._generate(source, name, filename, defer_init)

    def _through(self, name: str, value: Any) -> nodes.Filter:
        return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno, environment=self)


def _spend() -> None:
    steps = _left.get()
    steps[0] -= 1
    if steps[0] < 0:
        raise _TooMuch


def _counted(items: Iterable[Any]) -> Iterator[Any]:
    for each in items:
        _spend()
        yield each


def _range(*bounds: int) -> range:
    found = range(*bounds)
    if len(found) > MOST_STEPS:
        raise _TooMuch
    return found
