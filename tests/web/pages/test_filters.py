"""Filters in an address: each one is applied, and what cannot be applied is refused."""

from __future__ import annotations

import re
from html import unescape

import pytest
from starlette.testclient import TestClient

from dispatcher import InvalidDraft, Message, Status
from dispatcher.web import Right
from dispatcher.web.pages import PAGES
from dispatcher.web.pages.messages import FILTERS
from tests.support.house import FAR, House
from tests.support.house_fixtures import Build
from tests.web.pages.conftest import HOUR, Visit, paths
from tests.web.pages.test_actions import hidden

_CHANNELS = {name: {"transport": "memory"} for name in ("memory", "sms", "push")}
PATHS = sorted({each.path for each in PAGES if each.method == "GET" and "{" not in each.path})


def said(client: TestClient, query: str) -> str:
    """Return what a confirmation says it is about."""
    answer = client.get(f"/messages/bulk?do=cancel&{query}")
    assert answer.status_code == 200, answer.text
    [lead] = re.findall(r'<p class="lead">(.*?)</p>', answer.text)
    return unescape(re.sub("<[^>]*>", "", lead))


def test_a_parameter_or_a_field_that_a_page_does_not_have_is_refused(visit: Visit) -> None:
    client = visit()
    for path in PATHS:
        answer = client.get(f"{path}?do=cancel&chanel=sms")
        assert (answer.status_code, "there is no such parameter" in answer.text) == (422, True)
    text = client.get("/messages?chanel=sms").text
    assert "chanel: there is no such parameter; accepted: channel" in text
    answer = client.post("/messages/bulk", data={"do": "cancel", "chanel": "sms"})
    assert answer.status_code == 422
    assert "chanel: there is no such field; accepted: channel" in answer.text


@pytest.mark.parametrize(
    "path", ["/messages?", "/messages/bulk?do=cancel&", "/held?", "/calendar?recipient=ada&"]
)
def test_a_kind_of_scope_that_the_settings_lack_is_refused(
    house: House, visit: Visit, path: str
) -> None:
    house.submit(send_at=FAR + HOUR)
    answer = visit().get(f"{path}count.nope=x")
    assert answer.status_code == 422
    assert "there is no kind &#39;nope&#39;" in answer.text


def test_a_message_of_a_kind_that_was_configured_leads_to_no_list_of_all(
    build: Build, visit: Visit
) -> None:
    """Its calendar still opens: what the settings have no more counts no more."""
    with_tenants = build(scopes={"tenant": {"quotas": "9/hour"}})
    message = with_tenants.submit(send_at=FAR + HOUR, scopes={"tenant": "acme"})
    house = build(url=with_tenants.url)
    client = visit(of=house)
    text = client.get(f"/messages/{message.id}").text
    assert "acme" in text
    assert "count.tenant" not in text
    [calendar] = re.findall(r'<a href="(/calendar\?[^"]*)"', text)
    assert client.get(unescape(calendar)).status_code == 200
    assert client.get("/messages?count.tenant=acme").status_code == 422
    assert client.get("/messages/bulk?do=cancel&count.tenant=acme").status_code == 422


def test_scopes_of_channels_are_filters_as_on_the_command_line(build: Build, visit: Visit) -> None:
    house = build(channels=_CHANNELS)
    ada = house.submit(channel="sms", send_at=FAR + HOUR)
    ben = house.submit("ben", channel="sms", send_at=FAR + HOUR)
    other = house.submit(send_at=FAR + 3 * HOUR)
    client = visit(of=house)

    def listed(query: str) -> list[Message]:
        text = client.get(f"/messages?{query}").text
        return [each for each in (ada, ben, other) if str(each.id) in text]

    assert listed("") == [ada, ben, other]
    assert listed("count.recipient.sms=ada") == [ada]
    assert listed("count.channel.sms=sms") == [ada, ben]
    asked = client.get("/messages/bulk?do=cancel&count.recipient.sms=ada")
    assert "Cancel 1 message?" in asked.text
    client.post("/messages/bulk", data=hidden(asked.text, "/messages/bulk"))
    now = [house.again(each).status for each in (ada, ben, other)]
    assert now == [Status.CANCELLED, Status.SCHEDULED, Status.SCHEDULED]
    hiding = visit(Right.MESSAGES_READ, of=house)
    assert hiding.get("/messages?count.channel.sms=sms").status_code == 200
    assert hiding.get("/messages?count.recipient.sms=ada").status_code == 403


def test_a_confirmation_names_the_filters_that_are_applied(build: Build, visit: Visit) -> None:
    house = build(channels=_CHANNELS, scopes={"tenant": {"quotas": "9/hour"}})
    client = visit(of=house)
    assert said(client, "") == "All that are scheduled."
    assert said(client, "zone=Europe/Berlin&status=scheduled") == "All that are scheduled."
    query = (
        "channel=sms&recipient=ada&scope=ada&count.tenant=acme&count.channel.sms=sms&campaign=sale"
        "&key_prefix=order&from=2100-01-01T12:00&until=2100-01-02&overdue=on"
    )
    assert said(client, query) == (
        "All that are scheduled, channel sms, recipient ada, scope ada, channel.sms sms, "
        "tenant acme, campaign sale, key begins order, from Fri 01 Jan 2100 12:00:00 UTC, "
        "until Sat 02 Jan 2100 00:00:00 UTC, overdue."
    )
    bound = visit(of=house, scope=("tenant", "acme"))
    assert said(bound, "campaign=sale") == "All that are scheduled, tenant acme, campaign sale."


def test_a_box_is_on_or_off(house: House, visit: Visit) -> None:
    message = house.submit(send_at=FAR + HOUR)
    client = visit()
    shown = {each: client.get(f"/messages?overdue={each}") for each in ("0", "off", "on", "maybe")}
    assert str(message.id) in shown["0"].text
    assert str(message.id) in shown["off"].text
    assert 'type="checkbox" checked' not in shown["off"].text
    assert str(message.id) not in shown["on"].text
    assert 'type="checkbox" checked' in shown["on"].text
    assert shown["maybe"].status_code == 422
    assert said(client, "overdue=0") == "All that are scheduled."


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


def test_filters_that_the_form_has_no_field_for_are_named_and_can_be_removed(
    house: House, visit: Visit
) -> None:
    client = visit()
    assert "Also applied" not in client.get("/messages?campaign=sale").text
    text = client.get("/messages?campaign=sale&count.recipient.memory=ada&key=k").text
    [line] = re.findall(r"<p>(Also applied: .*?)</p>", text)
    assert re.sub("<[^>]*>", "", line) == (
        "Also applied: count.recipient.memory ada (remove count.recipient.memory), "
        "key k (remove key)."
    )
    links = [unescape(each) for each in re.findall(r'href="([^"]*)"', line)]
    assert links == [
        "/messages?campaign=sale&key=k",
        "/messages?campaign=sale&count.recipient.memory=ada",
    ]
    wrong = client.get("/messages?count.nope=x&campaign=sale")
    assert (wrong.status_code, 'href="/messages?campaign=sale"' in wrong.text) == (422, True)


@pytest.mark.parametrize("path", ["/messages?", "/messages/bulk?do=cancel&"])
def test_an_error_names_filters_as_the_page_does(visit: Visit, path: str) -> None:
    text = visit().get(f"{path}from=2100-01-02&until=2100-01-01").text
    assert "until: is not later than from; accepted: a later time" in text
    text = visit().get(f"{path}key={'x' * 2_000}").text
    assert "key: " in text
    assert "idempotency" not in text


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
    assert client.get("/messages?order=recipient").status_code == 422


def test_a_long_url_does_not_widen_the_list(house: House, visit: Visit) -> None:
    url = "https://shop.example/" + "a" * 1_000
    house.submit(url, send_at=FAR + HOUR)
    text = visit().get("/messages").text
    assert f"<td>{url[:99]}…</td>" in text
    assert url not in text


def test_an_error_quotes_the_value_that_was_given(visit: Visit) -> None:
    """It may be the name that a filter has elsewhere."""
    assert "there is no status &#39;scopes&#39;" in visit().get("/messages?status=scopes").text


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


def test_a_parameter_that_is_given_twice_is_refused(visit: Visit) -> None:
    for query in (
        "channel=sms&channel=memory",
        "count.recipient.memory=a&count.recipient.memory=b",
    ):
        for path in ("/messages?", "/messages/bulk?do=cancel&"):
            answer = visit().get(f"{path}{query}")
            assert answer.status_code == 422
            assert "is given more than once" in answer.text


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
    assert client.get("/messages?channel=push").status_code == 403
    assert "push" not in client.get("/campaigns?campaign=sale").text
    assert said(client, "") == "All that are scheduled, channel memory or sms."
    assert said(client, "channel=sms") == "All that are scheduled, channel sms."
    asked = client.get("/messages/bulk?do=cancel").text
    assert "Cancel 2 messages?" in asked
    client.post("/messages/bulk", data=hidden(asked, "/messages/bulk"))
    now = [house.again(each).status for each in (*own, other)]
    assert now == [Status.CANCELLED, Status.CANCELLED, Status.SCHEDULED]
    nothing = visit(of=house, channels=frozenset())
    assert nothing.get("/messages").status_code == 403


@pytest.mark.every_database
def test_several_channels_are_a_filter(build: Build) -> None:
    house = build(channels=_CHANNELS)
    for each in _CHANNELS:
        house.submit(each, channel=each, send_at=FAR + HOUR)
    ask = house.dispatcher.count
    assert [ask(channel=each) for each in ("sms", ["sms"], ("sms", "push"), None)] == [1, 1, 2, 3]
    with pytest.raises(InvalidDraft, match="channel: an empty list"):
        ask(channel=[])
    with pytest.raises(InvalidDraft, match="channel"):
        ask(channel=7)  # type: ignore[arg-type]  # as a caller may
