"""Types of bodies: channels that type checkers know, and the validation of what they carry."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, final, get_args
from uuid import UUID

from pydantic import BaseModel, RootModel, TypeAdapter, ValidationError
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic_core import ErrorDetails, PydanticSerializationError
from pydantic_core.core_schema import ErrorType

from dispatcher.errors import (
    InvalidDraft,
    InvalidSettings,
    InvalidValue,
    cut,
    kind_of,
    load_named,
    plain,
    quoted,
    refusal_of,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from typing_extensions import TypeVar

    AnyBody = Mapping[str, Any] | BaseModel | DataclassInstance
    """What may be the body of a draft: a JSON object, or a value of the type of its channel."""
    BodyT_contra = TypeVar("BodyT_contra", bound=AnyBody, contravariant=True)
    BodyOfChannel = TypeVar("BodyOfChannel", bound=AnyBody, default=Mapping[str, Any])
else:  # typing has no defaults of type variables before Python 3.13, and only checkers need them
    from typing import TypeVar

    BodyT_contra = TypeVar("BodyT_contra", contravariant=True)
    BodyOfChannel = TypeVar("BodyOfChannel")

log = logging.getLogger(__name__)

REF_TEMPLATE = "#/$defs/{model}"
"""Where a JSON Schema that stands alone keeps the schemas of its parts."""

_KINDS = frozenset(get_args(ErrorType))
_QUOTING = frozenset(
    {"union_tag_invalid", "bytes_invalid_encoding", "no_such_attribute", "timezone_offset"}
)
"""Kinds of errors whose texts quote the value; those with a context ``error`` do so, too."""
_OF_KEY = "[key]"
"""The step that pydantic adds to the path of an error about a key itself."""
_NO_WORDS = frozenset({"default", "metadata"})
"""Parts of a core schema that have no names of fields and may be anything."""
_PLAIN = (str, int, float, bytes, date, time, timedelta, Decimal, Enum, UUID)
"""Types of values that nobody can change; a datetime is a date."""
_ACCEPTED = "a model of pydantic, a dataclass or a TypedDict"
_SHOULD = re.compile(r"^.*? should (be |have )")


@final
class Channel(Generic[BodyT_contra]):
    """A channel by its name, with the type of its bodies: ``Email = Channel[EmailBody]("email")``.

    Give it to ``submit`` or to a :class:`Draft` instead of the name. A type checker then accepts
    only bodies of that type: a model of pydantic, a dataclass, a TypedDict, or a union of these.
    The submit validates the body and stores its JSON, by the aliases of the type. It makes no
    channel: that is in the settings under this name.
    """

    def __init__(self, name: str) -> None:
        self.name = plain(name)

    @cached_property
    def body_type(self) -> BodyType:
        """The type of its bodies. Raises InvalidValue where there is none that can be used."""
        types = get_args(getattr(self, "__orig_class__", None))
        if not types:
            problem = f"the channel {quoted(self.name)} is declared without a type of its bodies"
            raise InvalidValue("channel", problem, f"Channel[Body]({quoted(self.name)})")
        return BodyType(types[0])

    def json_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of a body as callers by HTTP write it. Raises InvalidValue."""
        return self.body_type.json_schema()

    def __repr__(self) -> str:
        types = get_args(getattr(self, "__orig_class__", None))
        return f"Channel[{_name(types[0]) if types else ''}]({self.name!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "body_type"}


class BodyType:
    """A type that validates bodies and gives their JSON. Raises InvalidValue where it cannot."""

    def __init__(self, type_: Any) -> None:
        self.type = type_
        self._name = _name(type_)
        try:
            self._adapter: TypeAdapter[Any] = TypeAdapter(type_)
        except Exception as error:
            reason = str(error).partition("\n")[0]
            problem = f"{self._name} is no type of bodies ({type(error).__name__}: {reason})"
            raise InvalidValue("body", problem, _ACCEPTED) from error

    def read(self, body: object) -> tuple[Any, Any]:
        """Validate a body of Python values; return its JSON, and that to compare it by.

        The latter lacks what a ``default_factory`` may make anew for the same body. Only an
        instance of a model has been validated when it was made. Raises InvalidDraft.
        """
        with self._refusing():
            if (
                is_dataclass(body)
                and not isinstance(body, type)
                and not is_pydantic_dataclass(type(body))
            ):
                value = self._adapter.validate_python(asdict(body), by_name=True, by_alias=True)
            else:
                value = self._adapter.validate_python(body)
            whole = self._write(value)
            made = _made(value)
            return whole, self._write(value, exclude=made) if made else whole

    def read_json(self, text: str) -> Any:
        """Validate a body that is JSON; return it as the type writes it. Raises InvalidDraft."""
        with self._refusing():
            return self._write(self._adapter.validate_json(text))

    def json_schema(self, ref_template: str = REF_TEMPLATE) -> dict[str, Any]:
        """Return the JSON Schema of what :meth:`read_json` accepts. Raises InvalidValue."""
        try:
            return self._adapter.json_schema(ref_template=ref_template)
        except Exception as error:
            problem = f"{self._name} has no JSON Schema ({type(error).__name__})"
            raise InvalidValue("body", problem, _ACCEPTED) from error

    def _write(self, value: object, exclude: dict[Any, Any] | None = None) -> Any:
        return self._adapter.dump_python(
            value, mode="json", by_alias=True, warnings="error", exclude=exclude
        )

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except ValidationError as error:
            raise self._refusal(error) from None
        except PydanticSerializationError:
            problem = f"{self._name} has a value of another type than declared, or not JSON"
            raise InvalidDraft("body", problem, f"what {self._name} accepts") from None
        except Exception as error:  # noqa: BLE001 - the code of validators may raise anything
            # Its text may quote the body.
            kind = type(error).__name__
            text = "the type of bodies %s raised %s: the draft is refused; correct the type"
            log.error(text, self._name, kind)  # noqa: TRY400 - same
            raise InvalidDraft(
                "body", f"{self._name} raised {kind}", f"a body that {self._name} can validate"
            ) from None

    def _refusal(self, error: ValidationError) -> InvalidDraft:
        first = first_of(error)
        steps = [step for step in first["loc"] if step != _OF_KEY]
        names = [self._step(step) for step in steps]
        if steps and (len(steps) < len(first["loc"]) or first["type"] == "invalid_key"):
            names[-1] = _OF_KEY  # it is about a key
        return InvalidDraft("body" + "".join(names), *self._sentence(first))

    def _step(self, step: int | str) -> str:
        """Return a step into a body: a word of the type or an index, but no key of the caller's."""
        words, has_numbers = self._words
        if isinstance(step, int):
            return _OF_KEY if has_numbers else f"[{step}]"
        return f".{step[:40]}" if step in words and step.isprintable() else _OF_KEY

    @cached_property
    def _words(self) -> tuple[frozenset[str], bool]:
        """The words of the type, its fields among them; whether keys of it may be numbers."""
        words: set[str] = set()
        has_numbers = False
        left: list[Any] = [self._adapter.core_schema]
        while left:
            part = left.pop()
            if isinstance(part, Mapping):
                if part.get("type") == "dict":
                    has_numbers |= part.get("keys_schema", {}).get("type") != "str"
                words.update(key for key in part if isinstance(key, str))
                left += [value for key, value in part.items() if key not in _NO_WORDS]
            elif isinstance(part, list | tuple):
                left += part
            elif isinstance(part, str):
                words.add(part)
            elif isinstance(part, type):
                words.add(part.__name__)
        return frozenset(words), has_numbers

    def _sentence(self, details: ErrorDetails) -> tuple[str, str]:
        kind, cause = details["type"], details.get("ctx", {}).get("error")
        if isinstance(cause, InvalidValue):  # a validator's own sentence
            return cause.problem, cause.accepted
        if kind == "missing":
            return "is missing", "a value: it has no default"
        if kind == "extra_forbidden":
            return "is unknown", f"the fields of {self._name}"
        if kind not in _KINDS or kind in _QUOTING or isinstance(cause, BaseException):
            return f"a validator refuses it ({cut(kind, 40)})", f"what {self._name} accepts"
        text = details["msg"]
        if cause is not None:
            text = text.partition(", ")[0].partition(": ")[0]  # the rest may quote the value
        return kind_of(details["input"]), cut(_SHOULD.sub("", text))


class BodyTypes:
    """Types of bodies that settings name, by channel. The first use loads: InvalidSettings."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = {channel: path for channel, path in paths.items() if path}
        self._loaded: dict[str, BodyType] = {}
        self.channels = tuple(self._paths)

    def of(self, channel: object) -> BodyType | None:
        if not isinstance(channel, str) or channel not in self._paths:
            return None
        if channel not in self._loaded:
            setting, accepted = _setting(channel), f"package.module:attribute of {_ACCEPTED}"
            type_ = load_named(setting, self._paths[channel], accepted)
            try:
                self._loaded[channel] = BodyType(type_)
            except InvalidValue as error:
                raise InvalidSettings(setting, error.problem, error.accepted) from error
        return self._loaded[channel]

    def json_schema(self, channel: str, ref_template: str = REF_TEMPLATE) -> dict[str, Any]:
        body_type = self.of(channel)
        try:
            return body_type.json_schema(ref_template) if body_type else {"type": "object"}
        except InvalidValue as error:
            raise InvalidSettings(_setting(channel), error.problem, error.accepted) from error

    def problems(self) -> Mapping[str, InvalidSettings | None]:
        """Load every type and its JSON Schema; return its error, or None, by the setting's name."""
        return {
            _setting(channel): refusal_of(partial(self.json_schema, channel))
            for channel in self._paths
        }


def first_of(error: ValidationError) -> ErrorDetails:
    """Return what explains most: a misspelt name is often missing under its right one."""
    return min(error.errors(include_url=False), key=lambda it: it["type"] != "extra_forbidden")


def _made(value: object) -> dict[Any, Any]:
    """Return where models in a value have a plain value of a ``default_factory``, to exclude it.

    Objects and arrays that one has made are left: a caller may have changed them since.
    """
    if isinstance(value, RootModel):
        return _made(value.root)
    made: dict[Any, Any] = {}
    parts: Iterable[tuple[Any, object]] = ()
    if isinstance(value, BaseModel):
        parts = vars(value).items()
        for name, info in type(value).model_fields.items():
            is_made = info.default_factory is not None and name not in value.model_fields_set
            if is_made and isinstance(vars(value).get(name), _PLAIN):
                made[name] = True
    elif isinstance(value, Mapping):
        parts = ((key, part) for key, part in value.items() if isinstance(key, str))
    elif isinstance(value, list | tuple):
        parts = enumerate(value)
    for name, part in parts:
        if name not in made and (inner := _made(part)):
            made[name] = inner
    return made


def _setting(channel: str) -> str:
    return f"channels.{channel}.body"


def _name(type_: object) -> str:
    return cut(getattr(type_, "__name__", None) or str(type_), 80)
