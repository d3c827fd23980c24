"""Jinja2 without what makes much of little, and with errors that quote nothing of the data.

Administrators write templates, data come from anywhere. So what a template may do is decided when
it is read: few filters, whose arguments stand in it; no ``*``, ``%``, ``**`` and ``range``; calls
of macros and methods of mappings only. The text is put together piece by piece, up to its bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import StringIO
from typing import Any

from jinja2 import (
    BaseLoader,
    StrictUndefined,
    Template,
    TemplateError,
    TemplateSyntaxError,
    UndefinedError,
    nodes,
)
from jinja2.filters import FILTERS
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS

from dispatcher.errors import InvalidDraft, InvalidSettings

FILTER_NAMES = frozenset({
    "abs", "capitalize", "count", "d", "decimals", "default", "dictsort", "e", "escape", "first",
    "float", "forceescape", "int", "items", "join", "last", "length", "list", "lower", "map", "max",
    "min", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr",
    "sort", "string", "sum", "title", "tojson", "trim", "truncate", "unique", "upper", "urlencode",
    "wordcount",
})  # fmt: skip
_OF_ANY_ARGUMENT = frozenset({"d", "default"})
_TESTS = frozenset({
    "!=", "<", "<=", "==", ">", ">=", "boolean", "defined", "divisibleby", "eq", "equalto", "even",
    "false", "float", "ge", "greaterthan", "gt", "integer", "iterable", "le", "lessthan", "lower",
    "lt", "mapping", "ne", "none", "number", "odd", "sequence", "string", "true", "undefined",
    "upper",
})  # fmt: skip
_GLOBALS = frozenset({"dict", "namespace"})
_FUNCTIONS = _GLOBALS | {"caller", "loop", "super"}
_METHODS = frozenset({"changed", "cycle", "get", "items", "keys", "values"})
_OPERATORS: Mapping[type[nodes.Node], str] = {nodes.Mul: "*", nodes.Mod: "%", nodes.Pow: "**"}
_ACCEPTED = "a template of Jinja2 with what docs/submitting.md lists"


class CompiledText:
    """One text of a template, compiled: a subject, a text, a page. ``path`` names it in errors."""

    def __init__(self, path: str, template: Template, wanted: frozenset[str]) -> None:
        self._path = path
        self._template = template
        self._wanted = wanted

    def render(self, data: Mapping[str, Any], *, limit: int) -> str:
        """Return at most ``limit`` characters. Raises InvalidDraft, without any of the data."""
        text = StringIO()
        problem = None
        try:
            for piece in self._template.generate(dict(data)):
                text.write(piece)
                if text.tell() > limit:
                    problem = f"has more than {limit} characters"
                    break
        except UndefinedError:
            missing = ", ".join(sorted(self._wanted - data.keys())) or "a value that data lacks"
            problem = f"needs {missing}"
        except Exception as error:  # noqa: BLE001 - filters may raise anything; it may quote data
            problem = f"cannot be rendered ({type(error).__name__})"
        if problem is None:
            return text.getvalue()
        accepted = "a value for each name in the template"
        raise InvalidDraft("data", f"{self._path} {problem}", accepted)


class Sandbox(ImmutableSandboxedEnvironment):
    """What compiles the parts of a channel's templates; ``escapes`` for those that are HTML."""

    def __init__(self, *, escapes: bool, loader: BaseLoader | None) -> None:
        super().__init__(
            autoescape=escapes, undefined=StrictUndefined, loader=loader, auto_reload=False
        )
        filters: dict[str, Any] = {**FILTERS, "decimals": _decimals}
        self.globals = {name: self.globals[name] for name in _GLOBALS}
        self.filters = {name: filters[name] for name in FILTER_NAMES}
        self.tests = {name: test for name, test in TESTS.items() if name in _TESTS}

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
            raise InvalidSettings(path, problem, _ACCEPTED) from None

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        """Parse a text, or a file that one extends or includes. Raises TemplateSyntaxError."""
        template = super()._parse(source, name, filename)
        for problem, node in _refused(template):
            raise TemplateSyntaxError(problem, node.lineno, name, filename)
        return template


def _refused(template: nodes.Template) -> Iterator[tuple[str, nodes.Node]]:
    for operation in template.find_all(tuple(_OPERATORS)):
        yield f"uses {_OPERATORS[type(operation)]}", operation
    yield from _refused_calls(template)
    for applied in template.find_all(nodes.Filter):
        values = [*applied.args, *(keyword.value for keyword in applied.kwargs)]
        if applied.dyn_args or applied.dyn_kwargs:
            yield f"gives the filter {applied.name} arguments of the data", applied
        elif applied.name not in _OF_ANY_ARGUMENT and not all(map(_is_literal, values)):
            yield f"gives the filter {applied.name} an argument that is no literal", applied


def _refused_calls(template: nodes.Template) -> Iterator[tuple[str, nodes.Node]]:
    macros = {macro.name for macro in template.find_all(nodes.Macro)}
    for named in template.find_all(nodes.FromImport):
        macros |= {name if isinstance(name, str) else name[1] for name in named.names}
    modules = {module.target for module in template.find_all(nodes.Import)} | {"self"}
    for call in template.find_all(nodes.Call):
        name = getattr(call.node, "name", None) or getattr(call.node, "attr", "a value")
        if isinstance(call.node, nodes.Name):
            is_known = name in macros | _FUNCTIONS
        else:
            of_module = getattr(getattr(call.node, "node", None), "name", None) in modules
            is_known = of_module or name in _METHODS
        if not is_known:
            yield f"calls {name}", call
    for macro in template.find_all(nodes.Macro):
        for call in macro.find_all(nodes.Call):
            if getattr(call.node, "name", None) in macros:
                yield "calls a macro inside a macro", call


def _is_literal(value: nodes.Expr) -> bool:
    return isinstance(value, nodes.Const) or (
        isinstance(value, nodes.Neg) and isinstance(value.node, nodes.Const)
    )


def _decimals(number: float, places: int = 2) -> str:
    return f"{number:.{places}f}"
