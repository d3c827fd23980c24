"""Typed channels: a valid body is stored as its JSON, and no refusal leaves a trace or tells it."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from ipaddress import IPv4Address
from itertools import count, product
from typing import Annotated, Any, Literal
from uuid import UUID, uuid4

import pydantic
import pytest
from pydantic import AnyUrl, BaseModel, ConfigDict, Field, computed_field, field_validator
from typing_extensions import TypedDict  # pydantic asks for it before Python 3.12

from dispatcher import (
    Channel,
    Draft,
    IdempotencyConflict,
    InvalidDraft,
    InvalidSettings,
    InvalidValue,
    Message,
    Rejection,
    UnknownChannel,
)
from dispatcher.body_types import BodyType
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build

HERE = __name__
LATER = FAR + timedelta(hours=1)
CANARY = "canary-4711"


class Part(BaseModel):
    name: str


class EmailBody(BaseModel):
    model_config = ConfigDict(extra="forbid", validate_by_name=True)

    subject: str
    on: Annotated[date, Field(alias="day")]
    parts: list[Part] = []
    priority: int = 3

    @computed_field
    def title(self) -> str:
        return f"{self.subject}!"


class StrictBody(BaseModel):
    model_config = ConfigDict(strict=True)

    on: date
    made: UUID = Field(default_factory=uuid4)


class PushBody(TypedDict):
    title: str
    on: date


@dataclass
class Code:
    digits: Annotated[str, Field(pattern=r"^\d+$", alias="code")]


@dataclass
class CodeBody:
    code: Code
    notes: list[str] = field(default_factory=list)


@pydantic.dataclasses.dataclass
class CheckedBody:
    text: str


DAY = date(2100, 12, 24)
Email = Channel[EmailBody]("memory")
MAIL = EmailBody(subject="Papers", on=DAY, parts=[Part(name="a")])
MAIL_JSON = {
    "subject": "Papers", "day": "2100-12-24", "parts": [{"name": "a"}], "priority": 3,
    "title": "Papers!",
}  # fmt: skip
EACH: list[tuple[Channel[Any], Any, Any]] = [
    (Email, MAIL, MAIL_JSON),
    (Channel[PushBody]("memory"), PushBody(title="t", on=DAY), {"title": "t", "on": "2100-12-24"}),
    (Channel[CodeBody]("memory"), CodeBody(Code("4711")), {"code": {"code": "4711"}, "notes": []}),
    (Channel[CheckedBody]("memory"), CheckedBody("hello"), {"text": "hello"}),
    (Channel[EmailBody | CheckedBody]("memory"), CheckedBody("hello"), {"text": "hello"}),
    (
        Channel[StrictBody]("memory"),
        StrictBody(on=DAY, made=UUID(int=7)),
        {"on": "2100-12-24", "made": str(UUID(int=7))},
    ),
]


def typed(build: Build, attribute: str = "EmailBody", **more: Any) -> House:
    channel = {"transport": "memory", "body": f"{HERE}:{attribute}"} | more
    return build(channels={"memory": channel})


def test_the_json_of_the_type_is_stored(build: Build) -> None:
    house = build(quotas=("1000/day",))
    for channel, body, stored in EACH:
        asked = {"channel": channel, "recipient": "ada", "body": body, "send_at": LATER}
        awaited = asyncio.run(house.dispatcher.asubmit(**asked))
        [message_of_many] = house.dispatcher.submit_many([Draft(**asked)])
        assert isinstance(message_of_many, Message)
        for message in (awaited, message_of_many):
            assert message.body == house.again(message).body == stored
            assert message.channel == "memory"


def broken(**changes: Any) -> EmailBody:
    return MAIL.model_copy(update=changes)


WRONG: list[tuple[Channel[Any], Any, tuple[str, str, str]]] = [
    (Email, {"subject": "s"}, ("body.day", "is missing", "a value: it has no default")),
    (Email, MAIL_JSON, ("body.title", "is unknown", "the fields of EmailBody")),
    (
        Email,
        {"subject": "s", "on": DAY, "parts": [{"name": "n"}, {"name": 4711}]},
        ("body.parts[1].name", "an int", "a valid string"),
    ),
    (
        Email,
        CheckedBody("x"),
        ("body", "a CheckedBody", "a valid dictionary or instance of EmailBody"),
    ),
    (
        Email,
        broken(subject=4711),
        (
            "body",
            "EmailBody has a value of another type than declared, or not JSON",
            "what EmailBody accepts",
        ),
    ),
    (
        Channel[CodeBody]("memory"),
        CodeBody(Code("4711 ")),
        ("body.code.digits", "a str", r"String should match pattern '^\d+$'"),
    ),
    (
        Channel[PushBody]("memory"),
        {"title": "t", "on": "4711x"},
        ("body.on", "a str", "a valid date or datetime"),
    ),
]


def test_a_wrong_body_is_refused_by_its_field_and_leaves_no_trace(house: House) -> None:
    """P6."""
    before = house.snapshot()
    drafts = [
        Draft(channel=channel, recipient="ada", body=body, send_at=LATER)
        for channel, body, _ in WRONG
    ]
    rejections = house.dispatcher.submit_many(drafts)
    for (channel, body, told), rejection in zip(WRONG, rejections, strict=True):
        with pytest.raises(InvalidDraft) as caught:
            house.dispatcher.submit(channel, recipient="ada", body=body, send_at=LATER)
        error = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
        assert (error.field, error.problem, error.accepted) == told
        assert "4711" not in f"{error}{vars(error)}"
        assert isinstance(rejection, Rejection)
        assert vars(rejection.error) == vars(error)
    assert house.snapshot() == before


class Color(Enum):
    RED = "red"


class Left(BaseModel):
    side: Literal["left"]


class Right(BaseModel):
    side: Literal["right"]


class Everything(BaseModel):
    """A field for each kind of error whose text may quote a value."""

    model_config = ConfigDict(extra="forbid")

    at: datetime = FAR
    on: date = DAY
    within: timedelta = timedelta(0)
    url: AnyUrl = AnyUrl("https://example.org")
    id: UUID = UUID(int=7)
    price: Decimal = Decimal(1)
    color: Color = Color.RED
    side: Annotated[Left | Right, Field(discriminator="side")] = Left(side="left")
    either: int | Literal["a"] = 1
    short: Annotated[str, Field(max_length=3)] = ""
    pattern: Annotated[str, Field(pattern="^x$")] = "x"
    few: Annotated[list[int], Field(max_length=1)] = []
    by_day: dict[date, int] = {}
    by_name: dict[str, Left] = {}
    by_number: dict[int, Left] = {}
    address: IPv4Address = IPv4Address(1)
    raw: bytes = b""
    own: str = ""
    dies: str = ""
    told: str = ""

    @field_validator("own")
    @classmethod
    def _refuses(cls, value: str) -> str:
        raise ValueError(value)

    @field_validator("dies")
    @classmethod
    def _dies(cls, value: str) -> str:
        raise KeyError(value)

    @field_validator("told")
    @classmethod
    def _tells(cls, value: str) -> str:
        raise InvalidValue("told", f"has {len(value)} characters", "none")


EVERYTHING = BodyType(Everything)
HIDDEN: list[Any] = [
    CANARY, f"{CANARY}{{", [CANARY] * 4, {"side": CANARY}, {"side": "left", CANARY: 1}, 4711.5,
    f"https://{CANARY}:x", f"2100-12-24T00:00:00+{CANARY}", "\ud800canary-4711", {CANARY: CANARY},
    {f"{CANARY}\nERROR": {}}, {4711: {}},
    CANARY.encode(), b"\xffcanary-4711", None,
]  # fmt: skip


def test_no_error_tells_a_value() -> None:
    """P10: each kind of value in each kind of field. The harness reads the log lines."""
    refused: list[InvalidDraft] = []
    bodies = [{name: value} for name, value in product(Everything.model_fields, HIDDEN)]
    for body in [*bodies, *(value for value in HIDDEN if isinstance(value, dict))]:
        try:
            EVERYTHING.read(body)
        except InvalidDraft as error:
            refused.append(error)
    for refusal in refused:
        told = f"{''.join(traceback.format_exception(refusal))}{vars(refusal)!r}"
        assert CANARY not in told
        assert "4711" not in f"{refusal}"
        assert str(refusal).isprintable()
    assert len(refused) > len(Everything.model_fields) * len(HIDDEN) // 2


@pytest.mark.parametrize(
    ("given_body", "path"),
    [
        ({"by_name": {"ada\n": {}}}, "body.by_name[key].side"),
        ({"by_name": {4711: {}}}, "body.by_name[key]"),
        ({"by_number": {4711: {}}}, "body.by_number[key].side"),
        ({"ada": 1}, "body[key]"),
        ({4711: 1}, "body[key]"),
        ({"side": {"side": "left", "ada": 1}, "few": ["a"]}, "body.few[key]"),
    ],
)
def test_the_path_of_an_error_has_no_key_of_the_caller(given_body: Any, path: str) -> None:
    """P10: keys may be names of recipients. Where some are numbers, so may an index be one."""
    with pytest.raises(InvalidDraft) as caught:
        EVERYTHING.read(given_body)
    assert caught.value.field == path


def test_a_validator_tells_its_problem_by_an_error_of_ours() -> None:
    with pytest.raises(InvalidDraft) as caught:
        EVERYTHING.read({"told": CANARY})
    assert str(caught.value) == "body.told: has 11 characters; accepted: none"
    with pytest.raises(
        InvalidDraft,
        match=r"^body: Everything raised KeyError; accepted: a body that Everything can validate",
    ):
        EVERYTHING.read({"dies": CANARY})


def test_the_type_of_the_settings_judges_callers_without_types(build: Build) -> None:
    house = typed(build)
    dispatcher = house.dispatcher
    given_body = {"subject": "Papers", "day": "2100-12-24"}
    stored = given_body | {"parts": [], "priority": 3, "title": "Papers!"}
    made = house.submit(body=given_body, send_at=LATER)
    assert house.again(made).body == stored
    assert house.submit("ben", body=MAIL, send_at=LATER).body == MAIL_JSON  # by name, with a model
    assert dispatcher.submit(Email, recipient="cyd", body=MAIL, send_at=LATER).body == MAIL_JSON
    before = house.snapshot()
    wrong: list[Callable[[], object]] = [
        lambda: house.submit("dan", body={"subject": "Papers"}, send_at=LATER),
        lambda: dispatcher.update(made.id, body={"subject": "Papers"}),
        lambda: dispatcher.update(made.id, body=CheckedBody("x")),
        lambda: dispatcher.submit(  # valid for the caller's type only
            Channel[CheckedBody]("memory"), recipient="dan", body=CheckedBody("x"), send_at=LATER
        ),
    ]
    for call in wrong:
        with pytest.raises(InvalidDraft, match=r"^body"):
            call()
    assert house.snapshot() == before
    assert dispatcher.update(made.id, body=MAIL).body == MAIL_JSON


def test_a_stored_message_moves_though_its_body_is_of_an_older_type(
    house: House, build: Build
) -> None:
    """P3: a type that is named later keeps no accepted message from its time."""
    message = house.submit(body={"text": "before"}, send_at=LATER)
    later = typed(build)
    moved = later.dispatcher.reschedule(message.id, send_at=LATER + timedelta(hours=1))
    assert moved.body == {"text": "before"}


def test_a_repeated_submit_is_compared_by_what_the_caller_gave(build: Build) -> None:
    """P8: neither a default that is made anew each time nor one of a new release is a change."""
    house = build()
    body = {"on": "2100-12-24"}
    asked: dict[str, Any] = {"idempotency_key": "k", "send_at": LATER, "body": body}
    first = house.submit(**asked)
    later = typed(build, "StrictBody")  # strict: a date is text in JSON only
    assert later.submit(**asked).id == first.id
    asked["idempotency_key"] = "l"
    second = later.submit("ben", **asked)
    assert second.body.keys() == {"on", "made"}
    assert later.submit("ben", **asked) == second
    with pytest.raises(IdempotencyConflict):
        later.submit("ben", **asked | {"body": {"on": "2100-12-25"}})


class GivenBody(BaseModel):
    on: date
    made: UUID = Field(default_factory=uuid4)


@pytest.mark.parametrize("setting", ["", "GivenBody", "StrictBody"])
def test_a_repeated_typed_submit_is_compared_by_what_the_caller_gave(
    build: Build, setting: str
) -> None:
    """P8: without a type of the settings, with the same one, and with another."""
    house = typed(build, setting) if setting else build()
    channel: Channel[Any] = Channel[GivenBody]("memory")
    body: Any = {"on": "2100-12-24"}
    asked: dict[str, Any] = {"recipient": "ada", "idempotency_key": "k", "send_at": LATER}
    first = house.dispatcher.submit(channel, body=body, **asked)
    assert first.body.keys() == {"on", "made"}
    assert house.dispatcher.submit(channel, body=body, **asked) == first
    with pytest.raises(IdempotencyConflict):
        house.dispatcher.submit(channel, body={"on": "2100-12-25"}, **asked)
    asked |= {"recipient": "ben", "idempotency_key": "l"}
    whole: Any = {"on": DAY, "made": UUID(int=7)}  # is no JSON: compared as the type writes it
    second = house.dispatcher.submit(channel, body=whole, **asked)
    assert house.dispatcher.submit(channel, body=whole, **asked) == second
    with pytest.raises(IdempotencyConflict):
        house.dispatcher.submit(channel, body=whole | {"made": UUID(int=8)}, **asked)


class Letter(BaseModel):
    kind: Literal["letter"] = "letter"
    made: UUID = Field(default_factory=uuid4)
    on: date = DAY


class Card(BaseModel):
    kind: Literal["card"] = "card"
    made: UUID = Field(default_factory=uuid4)
    on: date = DAY


class Post(BaseModel):
    parts: list[Letter | Card]
    tags: list[str] = Field(default_factory=list)
    at: UUID = Field(default_factory=uuid4, alias="of")
    number: int = Field(default_factory=partial(next, count()))
    named: dict[str, Letter] = Field(default_factory=dict)
    by_day: dict[date, tuple[Letter, ...]] = Field(default_factory=dict)


def test_a_model_that_is_built_again_is_the_same_body(house: House) -> None:
    """P8: what a ``default_factory`` makes is no change, and anything else is one."""
    channel: Channel[Any] = Channel[Post]("memory")
    made = UUID(int=7)

    def build_tagged() -> Post:
        post = Post(parts=[Letter()])
        post.tags.append("urgent")
        return post

    bodies: list[Callable[[], Any]] = [
        lambda: Post(parts=[Letter()]),
        lambda: Post(parts=[Letter(made=made)]),
        lambda: Post(parts=[Letter()], of=made),
        lambda: Post(parts=[], named={"a": Letter(), "b": Letter()}),
        lambda: {"parts": [{"on": date(2100, 1, 1)}]},
        build_tagged,
    ]
    for number, build in enumerate(bodies):
        asked: dict[str, Any] = {
            "recipient": f"r{number}",
            "idempotency_key": f"k{number}",
            "send_at": LATER,
        }
        first = house.dispatcher.submit(channel, body=build(), **asked)
        assert house.dispatcher.submit(channel, body=build(), **asked) == first
        for other in bodies[:number] + bodies[number + 1 :]:
            with pytest.raises(IdempotencyConflict):
                house.dispatcher.submit(channel, body=other(), **asked)


def test_a_rendered_template_is_judged_by_either_type(build: Build) -> None:
    templates = {"papers": {"subject": "{{ subject }}", "day": "{{ day }}"}}
    right = {"subject": "Papers", "day": "2100-12-24"}
    asked: dict[str, Any] = {"recipient": "ada", "template": "papers", "send_at": LATER}
    ways: list[tuple[House, Channel[Any] | str]] = [
        (typed(build, body="", templates=templates), Email),
        (typed(build, templates=templates), "memory"),
    ]
    for house, channel in ways:
        message = house.dispatcher.submit(channel, data=right, **asked)
        assert message.body == MAIL_JSON | {"parts": []}
        house.dispatcher.cancel(message.id)
        with pytest.raises(InvalidDraft, match=r"^body\.day: a str; accepted: a valid date"):
            house.dispatcher.submit(channel, data=right | {"day": "soon"}, **asked)


def test_a_type_that_cannot_be_used_refuses_submits(build: Build) -> None:
    for path, says in (
        ("no.such.module:Body", "cannot load 'no.such.module:Body' (ModuleNotFoundError)"),
        (f"{HERE}:missing", f"cannot load '{HERE}:missing' (AttributeError)"),
        (f"{HERE}:Email", "Channel[EmailBody]('memory') is no type of bodies"),
    ):
        house = build(channels={"memory": {"transport": "memory", "body": path}})
        before = house.snapshot()
        with pytest.raises(InvalidSettings, match=r"^channels\.memory\.body: ") as caught:
            house.submit(send_at=LATER)
        assert caught.value.problem.startswith(says)
        assert house.snapshot() == before


def test_a_declaration_that_is_not_whole_says_so(house: House) -> None:
    untyped: Channel[Any] = Channel("memory")
    with pytest.raises(InvalidValue, match=r"accepted: Channel\[Body\]\('memory'\)$"):
        house.dispatcher.submit(untyped, recipient="ada", body={}, send_at=LATER)
    unknown = Channel[EmailBody]("mail")
    with pytest.raises(UnknownChannel, match=r"there is no channel 'mail'"):
        house.dispatcher.submit(unknown, recipient="ada", body=MAIL, send_at=LATER)
    with pytest.raises(InvalidDraft, match=r"^body: an EmailBody; accepted: a JSON object"):
        house.dispatcher.submit("memory", recipient="ada", body=MAIL, send_at=LATER)


def test_a_typed_draft_can_be_sent_to_another_process(house: House) -> None:
    draft = Draft(channel=Email, recipient="ada", body=MAIL, send_at=LATER)
    house.dispatcher.plan([draft])  # the type has been used
    again = pickle.loads(pickle.dumps(draft))  # noqa: S301 - our own
    assert repr(again.channel) == "Channel[EmailBody]('memory')"
    [message] = house.dispatcher.submit_many([again])
    assert isinstance(message, Message)
    assert message.body == MAIL_JSON
