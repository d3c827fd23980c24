"""What is typed into a page: filters are applied or refused, times are read as they are shown."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from itertools import product
from uuid import UUID

import pytest
from starlette.testclient import TestClient

from dispatcher import InvalidSendTime, Status
from dispatcher.reservation.timeline import Timeline, WindowTimeline
from dispatcher.web.pages import calendar
from dispatcher.web.pages.messages import FILTERS
from dispatcher.web.pages.site import local_text, read_time
from tests.support.examples import a_third_of
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build
from tests.web.conftest import ON_SQLITE
from tests.web.pages.conftest import HOUR, PATHS, Visit, paths
from tests.web.pages.test_actions import hidden

_CHANNELS = {name: {"transport": "memory"} for name in ("memory", "sms", "push")}


def said_of(client: TestClient, query: str) -> str:
    """Return what a confirmation says it is about."""
    answer = client.get(f"/messages/bulk?do=cancel&{query}")
    assert answer.status_code == 200, answer.text
    [lead] = re.findall(r'<p class="lead">(.*?)</p>', answer.text)
    return unescape(re.sub("<[^>]*>", "", lead))


def test_what_a_page_cannot_apply_is_refused(visit: Visit) -> None:
    """Ignored, it would widen a list, and an action on it."""
    client, twice = visit(), "is given more than once"
    lists = ("/messages?", "/messages/bulk?do=cancel&", "/held?")
    no_kind, one_of = (
        "there is no kind &#39;nope&#39;",
        "cannot read &#39;{}&#39;; accepted: one of {}",
    )
    for paths_of_pages, query, said in (
        ([f"{path}?" for path in PATHS], "chanel=sms", "chanel: there is no such parameter"),
        ([f"{path}?" for path in PATHS], "zone=Mars/Olympus", "there is no zone"),
        (lists, "channel=sms&channel=memory", twice),
        (lists, "count.recipient.memory=a&count.recipient.memory=b", twice),
        (lists, "count.nope=x", no_kind),
        (["/calendar?recipient=ada&"], "count.nope=x", no_kind),
        (["/messages?"], "overdue=maybe", "overdue: "),
        (["/messages?"], "order=recipient", "order: "),
        (["/load?"], "within=month", one_of.format("month", "day, week")),
        (["/refusals?"], "since=2", one_of.format("2", "1, 24, 168")),
    ):
        for path in paths_of_pages:
            answer = client.get(f"{path}{query}")
            assert (answer.status_code, said in answer.text) == (422, True), (path, query)
    answer = client.post("/messages/bulk", data={"do": "cancel", "chanel": "sms"})
    assert answer.status_code == 422
    assert "chanel: there is no such field; accepted: channel" in answer.text
    assert said_of(client, "overdue=0") == "All that are scheduled."
    assert client.get("/messages?recipient=%ff").status_code == 400


def test_a_confirmation_names_the_filters_that_are_applied(build: Build, visit: Visit) -> None:
    house = build(channels=_CHANNELS, scopes={"tenant": {"quotas": "9/hour"}})
    client = visit(of=house)
    assert said_of(client, "") == "All that are scheduled."
    assert said_of(client, "zone=Europe/Berlin&status=scheduled") == "All that are scheduled."
    query = (
        "channel=sms&recipient=ada&scope=ada&count.tenant=acme&count.channel.sms=sms&campaign=sale&event=e"
        "&priority_from=-7&key=k&key_prefix=order&from=2100-01-01T12:00&until=2100-01-02&overdue=on"
        f"&made_after={UUID(int=1)}"
    )
    named = {pair.partition("=")[0] for pair in query.split("&")}
    assert {*FILTERS} - named == {"status", "zone"}, "a new filter: add it here, and to said()"
    assert said_of(client, query) == (
        "All that are scheduled, channel sms, recipient ada, scope ada, channel.sms sms, "
        "tenant acme, campaign sale, event e, priority from -7, key k, key begins order, "
        "from Fri 01 Jan 2100 12:00:00 UTC, "
        f"until Sat 02 Jan 2100 00:00:00 UTC, overdue, made after {UUID(int=1)}."
    )
    bound = visit(of=house, scope=("tenant", "acme"))
    assert said_of(bound, "campaign=sale") == "All that are scheduled, tenant acme, campaign sale."


def sent(text: str) -> dict[str, str]:
    """Return the filters that the button *List* sends."""
    form = text.split('action="/messages"')[1].split("</form>", maxsplit=1)[0]
    pairs = re.findall(r'name="([^"]*)" value="([^"]*)"', form)
    pairs += re.findall(r'name="(\w+)">(?:(?!</select>).)*<option selected>([^<]*)', form)
    pairs += [(name, "on") for name in re.findall(r'name="(\w+)" type="checkbox" checked', form)]
    assert len(dict(pairs)) == len(pairs)
    return {name: unescape(value) for name, value in pairs if value}


def test_the_button_list_keeps_every_filter_of_the_address(build: Build, visit: Visit) -> None:
    """Also those that the form has no field for: a list that grows wider may be cancelled whole."""
    house = build(channels=_CHANNELS, scopes={"tenant": {"quotas": "9/hour"}})
    made = house.submit(send_at=FAR + HOUR).id
    query = {
        "status": "scheduled", "channel": "fax", "recipient": "ada", "scope": "ada", "key": "k",
        "key_prefix": "order", "campaign": "<sale>", "event": "e", "priority_from": "0",
        "from": "2100-01-01", "until": "2100-01-02", "overdue": "on",
        "made_after": str(made), "zone": "Europe/Berlin",
    }  # fmt: skip
    assert {*query} == {*FILTERS}, "a new filter: add it here"
    query |= {"count.tenant": "acme", "count.recipient.sms": "ada", "count.channel.sms": "sms"}
    client = visit(of=house)
    assert sent(client.get("/messages", params=query).text) == query
    assert sent(client.get("/messages").text) == {}


def test_the_list_is_sorted_by_a_column_that_it_shows(house: House, visit: Visit) -> None:
    """Whatever was promised; and from either end, page by page, under the filters."""
    made = [house.submit(f"r{n}", send_at=FAR + (99 - n) * HOUR, campaign="c") for n in range(52)]
    house.submit("eve", send_at=FAR + HOUR)
    client, ids = visit(), [str(message.id) for message in made]
    for first, expected, sort in (
        ("/messages?campaign=c", ids[::-1], "descending"),
        ("/messages?campaign=c&order=oldest", ids, "ascending"),
    ):
        text = client.get(first).text
        following = unescape(re.findall(r'href="([^"]*)" rel="next"', text)[0])
        pages = (text, client.get(following).text)
        shown = [re.findall(r"<code>(.*?)</code>", page) for page in pages]
        assert [message_id for page in shown for message_id in page] == expected
        [(turned, title)] = re.findall(rf'aria-sort="{sort}"><a href="([^"]*)">(\w+)', text)
        assert title == "Made"
        assert (
            re.findall(r"<code>(.*?)</code>", client.get(unescape(turned)).text)[0]
            == (expected[-1])
        )


def test_no_link_of_a_page_is_refused(house: House, visit: Visit) -> None:
    client = visit()
    links = {
        unescape(link)
        for path in paths(house).values()
        for link in re.findall(r'href="(/[^"#]*)', client.get(path).text)
    }
    assert len(links) > 30
    codes = {link: client.get(link).status_code for link in links}
    assert {link for link, code in codes.items() if code != 200} == set()


def test_a_caller_of_several_channels_sees_and_changes_the_messages_of_all(
    build: Build, visit: Visit
) -> None:
    house = build(channels=_CHANNELS)
    own = [house.submit(channel, channel=channel, send_at=FAR + HOUR, campaign="sale")
           for channel in ("memory", "sms")]  # fmt: skip
    other = house.submit(channel="push", send_at=FAR + HOUR, campaign="sale")
    client = visit(of=house, channels=frozenset({"memory", "sms"}))
    for path in ("/messages", "/messages?channel=", "/messages?campaign=sale"):
        text = client.get(path).text
        assert [str(message.id) in text for message in (*own, other)] == [True, True, False]
    assert str(own[0].id) not in client.get("/messages?channel=sms").text
    assert client.get(f"/messages/{other.id}").status_code == 404
    story = client.get(f"/messages/{own[0].id}").text
    assert "See it in the calendar" not in story, "whose calendar shows other channels"
    assert client.get("/messages?channel=push").status_code == 403
    assert "push" not in client.get("/campaigns?campaign=sale").text
    assert said_of(client, "") == "All that are scheduled, channel memory or sms."
    assert said_of(client, "channel=sms") == "All that are scheduled, channel sms."
    asked = client.get("/messages/bulk?do=cancel").text
    assert "Cancel 2 messages?" in asked
    client.post("/messages/bulk", data=hidden(asked, "/messages/bulk"))
    now = [house.again(message).status for message in (*own, other)]
    assert now == [Status.CANCELLED, Status.CANCELLED, Status.SCHEDULED]
    nothing = visit(of=house, channels=frozenset())
    assert nothing.get("/messages").status_code == 403


VALUES = (
    "%00", "%ed%a0%80", "%F0%9F%92%A9", "x" * 2_000, "'\"<script>alert(1)</script>", "-1",
    "0001-01-01T00:00", "9999-12-31T23:59", "24:00", "2026-02-30", "2026-03-01T10:00%2B99:99",
    "//[", "01a209db-c66a-75f8-8347-388b3765dff1", "a%2F..%2Fb", "1e999",
)  # fmt: skip
NAMES = {
    "/calendar": ("recipient", "channel", "zone", "start", "view", "at", "done"),
    "/messages": ("status", "channel", "recipient", "scope", "key", "from", "until", "zone",
                  "overdue", "after", "order", "made_after", "done"),
    "/messages/bulk": ("do", "status", "from", "zone"),
    "/campaigns": ("campaign", "after", "done"),
    "/suppressions": ("recipient", "done"),
    "/held": ("channel", "zone", "done", "many"),
    "/": ("done", "many", "refused", "zone"),
    "/sign-in": ("to",),
}  # fmt: skip


@ON_SQLITE
@pytest.mark.parametrize("path", a_third_of([*NAMES]))
def test_no_query_breaks_a_page(house: House, visit: Visit, path: str) -> None:
    house.submit(send_at=FAR + HOUR)
    client = visit()
    base = {"/calendar": "recipient=ada&channel=memory", "/messages/bulk": "do=cancel"}
    pairs = product(enumerate(NAMES[path]), enumerate(VALUES))
    for value in VALUES if path == "/messages" else ():
        assert client.get(f"/messages/{value}").status_code in (200, 400, 404, 422), value
    for name, value in [(n, v) for (i, n), (j, v) in pairs if (i + j) % 2 == 0]:
        query = "&".join(filter(None, [base.get(path, ""), f"{name}={value}"]))
        answer = client.get(f"{path}?{query}")
        assert answer.status_code < 500, f"{path}?{query}"
        assert "<script>alert" not in answer.text


@ON_SQLITE
def test_no_redirect_leads_where_a_host_or_a_path_says(house: House, visit: Visit) -> None:
    client = visit()
    client.follow_redirects = False
    for path in ("/messages/", "/messages//", "//evil.example/", "/\\evil.example/"):
        location = client.get(path, headers={"Host": "evil.example"}).headers.get("location", "/")
        assert re.fullmatch(r"/(?![/\\]).*", location), path


@ON_SQLITE
def test_no_form_breaks_a_page(house: House, visit: Visit) -> None:
    message = house.submit(send_at=FAR + HOUR)
    client = visit()
    for value in ("", "x" * 2_000, "\x00", "١-٢-٣-٤-scheduled", "9999-12-31T23:59", "-1", "1" * 30):
        entered = client.post("/sign-in", data={"key": "x", "to": f"//[{value}"})
        assert entered.status_code < 500
        for path in (f"/messages/{message.id}/reschedule", f"/messages/{message.id}/drop",
                     "/messages/bulk", "/suppressions", "/suppressions/revoke"):  # fmt: skip
            form = dict.fromkeys(
                ("version", "send_at", "zone", "reason", "many", "last", "once", "recipient",
                 "channel", "later"), value,
            ) | {"do": "reschedule"}  # fmt: skip
            assert client.post(path, data=form).status_code < 500, path
    big = client.post("/suppressions", data={"recipient": "x" * 100_000})
    assert big.status_code == 413
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    odd = client.post("/suppressions", content=b"recipient=ad%FFa", headers=form)
    assert (odd.status_code, [*house.dispatcher.suppressed("ad\ufffda")]) == (400, [])


BERLIN = "Europe/Berlin"
NOW = datetime(2026, 12, 24, 8, 40, 12, tzinfo=UTC)  # 09:40:12 in Berlin


def read(text: str, zone: str = BERLIN) -> datetime:
    return read_time(text, zone, field="at", near=NOW)


@pytest.mark.parametrize(
    "form",
    ["", "%a %d %b %Y %H:%M:%S", "%a %d %b %Y %H:%M", "%a %d %b %H:%M:%S", "%a %d %b %H:%M",
     "%Y-%m-%d %H:%M:%S", "%d %b %Y, %H:%M", "%a, %d %b %H:%M"],
)  # fmt: skip
@pytest.mark.parametrize("zone", [BERLIN, "UTC", "Asia/Kathmandu"])
def test_what_the_page_shows_can_be_typed(form: str, zone: str) -> None:
    for at in (datetime(2026, 12, 24, 9, 5, tzinfo=UTC), datetime(2027, 2, 1, 0, 0, tzinfo=UTC)):
        assert read(f" {local_text(at, zone, form)} ", zone) == at
        assert read(local_text(at, zone, form).lower().replace(" 0", "  "), zone) == at
    at = datetime(2026, 12, 24, 9, 5, 1, 23_000, tzinfo=UTC)
    assert read(local_text(at, zone), zone) == at


@pytest.mark.parametrize(
    ("text", "day", "hour", "minute"),
    [
        ("10:30", 24, 9, 30),
        ("9:41", 24, 8, 41),
        ("9:40", 24, 8, 40),
        ("9:39", 25, 8, 39),
        ("09:30", 25, 8, 30),
        ("2026-12-28 9:30", 28, 8, 30),
        ("2026-12-28T09:30", 28, 8, 30),
        ("2026-12-28T09:30+02:00", 28, 7, 30),
        ("20261228T0930Z", 28, 9, 30),
        ("2026-12-28", 27, 23, 0),
    ],
)
def test_a_time_is_read(text: str, day: int, hour: int, minute: int) -> None:
    assert read(text) == datetime(2026, 12, day, hour, minute, tzinfo=UTC)


@pytest.mark.parametrize(
    "text",
    [
        "25:99",
        "Fri 41 Dec 2026 08:30",
        "24 Yes 2026 08:30",
        "soon",
        "at 9",
        "2026-02-30 9:30",
        "Thu 08:30",
        "tomorrow 23:00",
        "Dec 10:00",
        "PM 8:30",
    ],
)
def test_an_error_quotes_what_was_typed(text: str) -> None:
    with pytest.raises(InvalidSendTime) as refused:
        read(text)
    assert f"cannot read '{text}'" in str(refused.value)
    assert "Thu 24 Dec 2026 08:30:00" in str(refused.value)


def test_a_time_that_happens_twice_is_shown_and_read_with_its_offset() -> None:
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    for at, offset in ((first, "+02:00"), (first + timedelta(hours=1), "+01:00")):
        for form in ("", "%Y-%m-%d %H:%M:%S", "%a %d %b %H:%M"):
            shown = local_text(at, BERLIN, form)
            assert shown.endswith(f" {offset}")
            assert read(shown) == at
        assert local_text(at, BERLIN, "%H:%M") == "02:30"
    assert local_text(first - timedelta(hours=1), BERLIN).endswith("01:30:00")


def test_a_time_in_a_filter_is_that_of_today() -> None:
    for text, hour in (("9:30", 8), ("23:00", 22)):
        instant = read_time(text, BERLIN, field="from", near=NOW, of_day=True)
        assert instant == datetime(2026, 12, 24, hour, 0 if hour == 22 else 30, tzinfo=UTC)


def test_a_time_that_happens_twice_needs_an_offset() -> None:
    with pytest.raises(InvalidSendTime, match=r"happens twice in Europe/Berlin.*with an offset"):
        read("Sun 25 Oct 2026 02:30:00")
    with pytest.raises(InvalidSendTime, match="skipped by a clock change"):
        read("Sun 28 Mar 2027 02:30")


def drawn(view: str, lines: list[tuple[datetime, str, str]]) -> calendar.Picture:
    shown = calendar.VIEWS[view]
    start, end = calendar.stretch_of(shown, NOW, "UTC")
    window = WindowTimeline("ada", booked=(), quotas=(), complete=True)
    timeline = Timeline(start, end, "UTC", windows=(window,), quiet=(), steps=(), slots=())
    return calendar.Picture(timeline, shown, NOW, lines)


@pytest.mark.parametrize("view", calendar.VIEWS)
def test_each_line_is_in_the_row_of_its_time_and_rows_have_room_for_their_texts(view: str) -> None:
    row = calendar.VIEWS[view].row
    start, end = calendar.stretch_of(calendar.VIEWS[view], NOW, "UTC")
    times = {"now": start, "asked for": start + row / 2, "next free slot": start + row, "-": end}
    picture = drawn(view, [(at, text, text) for text, at in times.items()])
    shown = [[line.text for line in row.lines] for row in picture.rows]
    assert shown[:2] == [["now", "asked for"], ["next free slot"]]
    assert not any(shown[2:])
    assert picture.rows[0].lines[0].x == calendar.LEFT
    tops = [row.y for row in picture.rows]
    assert tops[1] - tops[0] == tops[2] - tops[1] + calendar.LINE
