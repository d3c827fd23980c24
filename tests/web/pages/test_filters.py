"""Filters in an address: each one is applied, what cannot be applied is refused, nothing breaks."""

from __future__ import annotations

import re
from html import unescape
from itertools import product

import pytest
from starlette.testclient import TestClient

from dispatcher import Status
from dispatcher.web.pages.messages import FILTERS
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
        "channel=sms&recipient=ada&scope=ada&count.tenant=acme&count.channel.sms=sms&campaign=sale"
        "&key_prefix=order&from=2100-01-01T12:00&until=2100-01-02&overdue=on"
    )
    assert said_of(client, query) == (
        "All that are scheduled, channel sms, recipient ada, scope ada, channel.sms sms, "
        "tenant acme, campaign sale, key begins order, from Fri 01 Jan 2100 12:00:00 UTC, "
        "until Sat 02 Jan 2100 00:00:00 UTC, overdue."
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
        "key_prefix": "order", "campaign": "<sale>", "from": "2100-01-01", "until": "2100-01-02",
        "overdue": "on", "made_after": str(made), "zone": "Europe/Berlin",
    }  # fmt: skip
    assert {*query} == {*FILTERS}
    query |= {"count.tenant": "acme", "count.recipient.sms": "ada", "count.channel.sms": "sms"}
    client = visit(of=house)
    assert sent(client.get("/messages", params=query).text) == query
    assert sent(client.get("/messages").text) == {}


def test_the_list_is_sorted_by_a_column_that_it_shows(house: House, visit: Visit) -> None:
    """Whatever was promised; and from either end, page by page, under the filters."""
    made = [house.submit(f"r{n}", send_at=FAR + (99 - n) * HOUR, campaign="c") for n in range(52)]
    house.submit("eve", send_at=FAR + HOUR)
    client, ids = visit(), [str(each.id) for each in made]
    for first, expected, sort in (
        ("/messages?campaign=c", ids[::-1], "descending"),
        ("/messages?campaign=c&order=oldest", ids, "ascending"),
    ):
        text = client.get(first).text
        following = unescape(re.findall(r'href="([^"]*)" rel="next"', text)[0])
        shown = [re.findall(r"<code>(.*?)</code>", each)
                 for each in (text, client.get(following).text)]  # fmt: skip
        assert [each for page in shown for each in page] == expected
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
    own = [house.submit(each, channel=each, send_at=FAR + HOUR, campaign="sale")
           for each in ("memory", "sms")]  # fmt: skip
    other = house.submit(channel="push", send_at=FAR + HOUR, campaign="sale")
    client = visit(of=house, channels=frozenset({"memory", "sms"}))
    for path in ("/messages", "/messages?channel=", "/messages?campaign=sale"):
        text = client.get(path).text
        assert [str(each.id) in text for each in (*own, other)] == [True, True, False]
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
    now = [house.again(each).status for each in (*own, other)]
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
@pytest.mark.parametrize("path", NAMES)
def test_no_query_breaks_a_page(house: House, visit: Visit, path: str) -> None:
    house.submit(send_at=FAR + HOUR)
    client = visit()
    base = {"/calendar": "recipient=ada&channel=memory", "/messages/bulk": "do=cancel"}
    pairs = product(enumerate(NAMES[path]), enumerate(VALUES))
    for value in VALUES if path == "/messages" else ():
        assert client.get(f"/messages/{value}").status_code in (200, 400, 404, 422), value
    for name, value in [(n, v) for (i, n), (j, v) in pairs if (i + j) % 2 == 0]:
        given = "&".join(filter(None, [base.get(path, ""), f"{name}={value}"]))
        answer = client.get(f"{path}?{given}")
        assert answer.status_code < 500, f"{path}?{given}"
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
