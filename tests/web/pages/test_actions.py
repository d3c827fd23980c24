"""What a person does on the page: to one message, and to all that match."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dispatcher import Message, Status, TemporaryFailure
from dispatcher.store.listing import StoredVersion
from dispatcher.store.messages import Messages
from dispatcher.web import Right
from dispatcher.web.pages import messages as message_pages
from tests.support.house import FAR, House
from tests.web.conftest import all_but
from tests.web.pages.conftest import HOUR, Visit, hold

_HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')


@pytest.fixture
def person(visit: Visit) -> TestClient:
    return visit()


def version(house: House, message: Message) -> str:
    """Return what a form has of a message as it is now."""
    return message_pages.version_of(house.parts.messages.movable(message.id))


def confirmed(house: House, *messages: Message) -> str:
    """Return what a form has of messages that were counted just now."""
    now = house.parts.messages.movables([message.id for message in messages])
    return message_pages.versions_text([StoredVersion.of(movable) for movable in now.values()])


def hidden(text: str, action: str) -> dict[str, str]:
    """Return the hidden fields of the form that leads to ``action``."""
    form = text.split(f'action="{action}')[1].split("</form>", maxsplit=1)[0]
    return {name: unescape(value) for name, value in _HIDDEN.findall(form)}


def test_a_message_is_moved_and_cancelled(
    house: House, person: TestClient, actions: list[str]
) -> None:
    message = house.submit(send_at=FAR + HOUR)
    path = f"/messages/{message.id}"
    form = hidden(person.get(path).text, f"{path}/reschedule")
    moved = person.post(f"{path}/reschedule", data={**form, "send_at": "2100-01-01 15:00:00"})
    assert (moved.status_code, moved.headers["location"]) == (303, f"{path}?done=reschedule")
    assert house.again(message).send_at == FAR + 4 * HOUR

    form = hidden(person.get(path).text, f"{path}/cancel")
    assert person.post(f"{path}/cancel", data=form).status_code == 303
    assert house.again(message).status is Status.CANCELLED
    assert f"page: reschedule of message {message.id}, now scheduled by ops" in actions
    assert f"page: cancel of message {message.id}, now cancelled by ops" in actions
    assert "Done: cancelled" in person.get(f"{path}?done=cancel").text


def test_a_story_tells_each_attempt_and_what_comes_next(slow: House, visit: Visit) -> None:
    slow.fail_sends(TemporaryFailure("503 the provider is overloaded"))
    message = slow.submit(campaign="summer")
    slow.deliver(message)
    client = visit(of=slow)
    text = client.get(f"/messages/{message.id}").text
    assert "/campaigns?campaign=summer" in text
    assert "<b>attempt 1</b>: temporary after " in text
    assert " – TemporaryFailure: 503 the provider is overloaded</li>" in text
    assert "the sweep enqueues it at" in text
    [steps] = re.findall(r'<ol class="steps">.*?</ol>', text, re.DOTALL)
    assert re.findall("<b>([^<]*)</b>", steps) == ["submitted", "enqueued", "attempt 1"]


def test_the_slot_that_a_refused_move_offers_is_free(house: House, person: TestClient) -> None:
    """To the millisecond; and a form that is sent as it came moves nothing."""
    house.submit(send_at=FAR + HOUR + timedelta(milliseconds=500))
    message = house.submit(send_at=FAR + 5 * HOUR + timedelta(milliseconds=700))
    path = f"/messages/{message.id}"

    def move(to: str, **more: str) -> Any:
        asked = {"version": version(house, message), "send_at": to, **more}
        return person.post(f"{path}/reschedule", data=asked)

    def offered(page: Any) -> str:
        return str(re.findall(r'name="send_at"[^>]* value="([^"]*)"', page.text)[0])

    assert move(offered(person.get(path))).status_code == 303
    assert house.again(message).send_at == message.send_at
    refused = move("2100-01-01T12:00:30")
    assert refused.status_code == 409
    assert "does not fit the quota 1/minute" in refused.text
    assert house.again(message).send_at == message.send_at
    slot = FAR + HOUR + timedelta(minutes=1, milliseconds=500)
    assert move(offered(refused)).status_code == 303
    assert house.again(message).send_at == slot
    assert move("2100-01-01T12:00:30", shift="on").status_code == 303
    assert house.again(message).send_at == slot


def test_a_held_message_is_shown_as_its_form_changes_it(
    house: House, person: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two readings another one changed it."""
    message = hold(house)
    real = Messages.movables

    def movables(messages: Messages, ids: Any) -> Any:
        house.change([message], attempt_count=7)
        return real(messages, ids)

    monkeypatch.setattr(Messages, "movables", movables)
    assert ">7 of " in person.get("/held").text


@pytest.mark.parametrize("verb", ["cancel", "reschedule"])
def test_a_form_of_an_old_version_changes_nothing(
    house: House, person: TestClient, verb: str
) -> None:
    message = house.submit(send_at=FAR + HOUR)
    before = version(house, message)
    now = house.dispatcher.update(message.id, body={"text": "other"})
    path, more = f"/messages/{message.id}/{verb}", {"send_at": "2100-01-02T12:00"}
    more = more if verb == "reschedule" else {}
    for old in (before, "-"):
        answer = person.post(path, data={"version": old, **more})
        assert (answer.status_code, "decide anew" in answer.text) == (412, True)
    assert house.again(message) == now
    shown = version(house, message)
    house.change([message], next_attempt_at=FAR + 2 * HOUR)
    answer = person.post(path, data={"version": shown, **more})
    assert answer.status_code == 303, "it was only snoozed"


def test_what_delays_a_message_is_shown_also_after_its_end(
    house: House, person: TestClient
) -> None:
    message = house.submit(send_at=FAR + HOUR)
    assert "Delayed by" not in person.get(f"/messages/{message.id}").text
    house.change([message], delayed_by="channel memory: 1/hour")
    text = person.get(f"/messages/{message.id}").text
    assert "<strong>Next:</strong> delayed by channel memory: 1/hour; it is due at" in text
    house.dispatcher.cancel(message.id)
    text = person.get(f"/messages/{message.id}").text
    assert "<dt>Delayed by</dt><dd>channel memory: 1/hour</dd>" in text


@pytest.mark.every_database
def test_what_has_been_held_longest_comes_first(house: House, person: TestClient) -> None:
    """Whenever it was made: a message of old may have been held just now."""
    made = [hold(house, name) for name in ("ada", "ben", "cyd")]
    for message, hours in zip(made, (1, 3, 2), strict=True):
        house.change([message], next_attempt_at=house.database_time() - hours * HOUR)
    shown = re.findall(r"<code>(.*?)</code>", person.get("/held").text)
    assert shown == [str(made[number].id) for number in (1, 2, 0)]


def test_held_messages_are_released_and_dropped_with_a_reason(
    house: House, person: TestClient, actions: list[str]
) -> None:
    first, second = (hold(house, name) for name in ("ada", "ben"))
    form = hidden(person.get("/held").text, f"/messages/{first.id}/release")
    path = f"/messages/{first.id}/release"
    assert person.post(path, data=form).status_code == 422, "without a reason"
    assert house.again(first).status is Status.HELD
    form["reason"] = "the provider has lost it"
    assert person.post(path, data=form).status_code == 303
    assert house.again(first).status is Status.SCHEDULED
    assert person.post(f"/messages/{second.id}/drop").status_code == 422
    form = {"version": version(house, second), "reason": "the provider has it"}
    dropped = person.post(f"/messages/{second.id}/drop", data=form)
    assert dropped.status_code == 303
    now = house.again(second)
    assert now.status is Status.FAILED
    assert (now.last_error or "").endswith("; the provider has it")
    assert "the provider has it" in person.get(f"/messages/{second.id}").text
    form = {"version": version(house, second)}
    assert person.post(f"/messages/{second.id}/retry", data=form).status_code == 422
    form["perhaps_sent"] = "on"
    assert person.post(f"/messages/{second.id}/retry", data=form).status_code == 303
    assert house.again(second).status is Status.SCHEDULED
    assert actions == [
        f"page: release of message {first.id}, now scheduled (the provider has lost it) by ops",
        f"page: drop of message {second.id}, now failed by ops",
        f"page: retry of message {second.id}, now scheduled by ops",
    ]


def test_a_form_with_a_mistake_is_sent_again_and_moves_once(
    house: House, person: TestClient
) -> None:
    message = house.submit(send_at=FAR + HOUR)
    asked = person.get("/messages/bulk?do=reschedule&channel=memory").text
    form = hidden(asked, "/messages/bulk")
    for mistake in ({"later": "two hours"}, {}, {"later": "2 hours", "send_at": "12:00"}):
        assert person.post("/messages/bulk", data={**form, **mistake}).status_code == 422
    assert house.again(message).send_at == FAR + HOUR
    for done in (1, 0):  # the same form again moves nothing
        answer = person.post("/messages/bulk", data={**form, "later": "2 hours"})
        assert f"Move: {done} of 1 done" in answer.text
    assert house.again(message).send_at == FAR + 3 * HOUR


def test_a_change_is_of_the_messages_that_were_counted_as_they_were(
    house: House, person: TestClient, actions: list[str]
) -> None:
    """Those that were moved or edited, or began to match, are left as they are.

    One that was snoozed is as it was: a pause looks at what it keeps back again and again.
    """
    counted, snoozed, moved, edited = (
        house.submit(name, send_at=FAR + HOUR) for name in ("ada", "gil", "ben", "cleo")
    )
    other = house.submit("dora", send_at=FAR + 9 * HOUR)
    asked = person.get("/messages/bulk?do=cancel&until=2100-01-01T13:00").text
    assert "Cancel 4 messages?" in asked
    assert house.again(counted) == counted
    house.dispatcher.reschedule(moved.id, send_at=FAR + 9 * HOUR)
    house.change([snoozed], next_attempt_at=FAR + 2 * HOUR)
    house.dispatcher.update(edited.id, body={"text": "other"})
    house.dispatcher.reschedule(other.id, send_at=FAR + HOUR)
    text = person.post("/messages/bulk", data=hidden(asked, "/messages/bulk")).text
    assert "Cancel: 2 of 4 done" in text
    assert "changed since they were counted" in text
    assert {house.again(message).status for message in (counted, snoozed)} == {Status.CANCELLED}
    assert {house.again(message).status for message in (moved, edited, other)} == {Status.SCHEDULED}
    assert actions == ["page: cancel of 2 messages by filter, 2 refused by ops"]


def test_the_message_and_all_that_match_get_a_priority(
    house: House, person: TestClient, actions: list[str]
) -> None:
    first, second = (
        house.submit(name, send_at=FAR + HOUR, campaign="summer") for name in ("ada", "ben")
    )
    path = f"/messages/{first.id}"
    form = hidden(person.get(path).text, f"{path}/prioritize")
    for mistake in ({}, {"priority": "101"}, {"priority": "high"}, {"priority": "1.5"}):
        refused = person.post(f"{path}/prioritize", data=form | mistake)
        assert (refused.status_code, "priority: " in refused.text) == (422, True), mistake
    done = person.post(f"{path}/prioritize", data=form | {"priority": "-7"})
    text = person.get(done.headers["location"]).text
    assert "Done: it has another priority." in text
    assert "<dt>Priority</dt><dd>-7</dd>" in text
    assert person.post(f"{path}/prioritize", data=form | {"priority": "7"}).status_code == 412

    asked = person.get("/messages/bulk?do=prioritize&campaign=summer&priority_from=-7").text
    assert "campaign summer, priority from -7" in re.sub("<[^>]*>", "", asked)
    form = hidden(asked, "/messages/bulk")
    assert person.post("/messages/bulk", data=form).status_code == 422
    text = person.post("/messages/bulk", data=form | {"priority": "50"}).text
    assert "Prioritize: 2 of 2 done" in text
    assert [house.again(message).priority for message in (first, second)] == [50, 50]
    assert actions == [
        f"page: prioritize of message {first.id}, now scheduled by ops",
        "page: prioritize of 2 messages by filter, 0 refused by ops",
    ]


def test_a_form_tells_nothing_about_bodies_and_recipients(house: House, visit: Visit) -> None:
    """A visitor who guesses a body or a recipient finds no digest in the form that confirms it."""
    client = visit(Right.MESSAGES_READ, Right.MESSAGES_CANCEL)
    message = house.submit("ada", body={"text": "code 1234"}, send_at=FAR + HOUR)

    def form() -> str:
        asked = client.get("/messages/bulk?do=cancel&channel=memory").text
        return hidden(asked, "/messages/bulk")["messages"]

    before = form()
    house.sql("UPDATE dispatcher_messages SET recipient = 'ben', body = '{}'")
    assert house.again(message).recipient == "ben"
    assert form() == before


@pytest.mark.parametrize("verb", message_pages.ACTIONS)
def test_what_another_call_changes_after_the_comparison_is_left(
    house: House, person: TestClient, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The change itself is guarded: nothing that comes between is lost."""
    meant, changed = (house.submit(name, send_at=FAR + HOUR) for name in ("ada", "ben"))
    if verb == "retry":
        meant, changed = (house.dispatcher.drop(hold(house, name).id) for name in ("cyd", "dan"))
    asked = person.get(f"/messages/bulk?do={verb}&channel=memory").text
    unchanged = message_pages.unchanged

    def compare(*arguments: Any) -> Any:
        same = unchanged(*arguments)
        house.change([changed], attempt_count=2)
        return same

    monkeypatch.setattr(message_pages, "unchanged", compare)
    form = hidden(asked, "/messages/bulk")
    form |= {"reschedule": {"later": "2 hours"}, "retry": {"perhaps_sent": "on"},
             "prioritize": {"priority": "50"}}.get(verb, {})  # fmt: skip
    text = person.post("/messages/bulk", data=form).text
    assert "1 of 2 done" in text
    assert "1: changed since they were counted" in text
    left, after = house.again(changed), house.again(meant)
    assert (left.status, left.send_at, left.attempt_count) == (changed.status, changed.send_at, 2)
    assert (after.status, after.send_at) == {
        "cancel": (Status.CANCELLED, FAR + HOUR),
        "reschedule": (Status.SCHEDULED, FAR + 3 * HOUR),
        "retry": (Status.SCHEDULED, meant.send_at),
        "prioritize": (Status.SCHEDULED, meant.send_at),
    }[verb]
    assert (left.priority, after.priority) == (0, 50 if verb == "prioritize" else 0)


def test_pauses_are_begun_and_ended_for_a_reason(
    house: House, person: TestClient, actions: list[str]
) -> None:
    names = {"channel": "memory", "recipient": "ada", "campaign": "summer"}
    offered = person.get("/pauses").text
    for kind, name in names.items():
        assert f"<option>{kind}</option>" in offered
        pause = {"kind": kind, "name": name}
        assert person.post("/pauses", data=pause).status_code == 422, "without a reason"
        begun = person.post("/pauses", data={**pause, "reason": "the provider is down"})
        assert begun.headers["location"] == "/pauses?done=pause"
    assert {paused.kind: paused.name for paused in house.parts.pauses.in_force()} == names
    assert "page: pause of channel memory (the provider is down) by ops" in actions
    house.dispatcher.resume("campaign", "summer")
    form = hidden(person.get("/pauses").text, "/pauses/end")
    assert form == {"kind": "channel", "name": "memory"}
    ended = person.post("/pauses/end", data={**form, "reason": "it is up"})
    assert ended.headers["location"] == "/pauses?done=resume"
    assert [paused.kind for paused in house.parts.pauses.in_force()] == ["recipient"]
    assert "page: resume of channel memory (it is up) by ops" in actions
    assert not any("ada" in action for action in actions)
    assert person.post("/pauses", data={"kind": "x", "name": "y", "reason": "z"}).status_code == 422


def test_quotas_of_one_scope_are_set_and_ended_for_a_reason(
    house: House, person: TestClient, actions: list[str]
) -> None:
    for minutes in range(3):
        house.submit("ada", send_at=FAR + HOUR + timedelta(minutes=minutes))
    assert "<option>recipient</option>" in person.get("/quotas").text
    wanted = {"kind": "recipient", "name": "ada", "quotas": "2/hour\r\n9/day in UTC\r\n"}
    assert person.post("/quotas", data=wanted).status_code == 422, "without a reason"
    assert person.get("/quotas").text.count("2/hour") == 0
    done = person.post("/quotas", data={**wanted, "reason": "a larger plan"})
    assert done.headers["location"] == "/quotas?done=set_quotas&many=1"
    assert "1 message to come are more" in person.get("/quotas?done=set_quotas&many=1").text
    assert "2/hour; 9/day in UTC" in person.get("/quotas").text
    form = hidden(person.get("/quotas").text, "/quotas/end")
    assert form == {"kind": "recipient", "name": "ada", "what": "quotas"}
    ended = person.post("/quotas/end", data={**form, "reason": "it has ended"})
    assert ended.headers["location"] == "/quotas?done=unset_quotas"
    assert house.dispatcher.scope_settings() == ()
    assert "page: unset_quotas of recipient (it has ended) by ops" in actions
    assert not any("ada" in action for action in actions)
    for wrong in ({"quotas": "9/fortnight"}, {"quotas": " "}, {"kind": "x"}):
        data = {**wanted, **wrong, "reason": "none"}
        assert person.post("/quotas", data=data).status_code == 422, wrong


def test_limits_of_one_scope_are_set_and_ended_beside_its_quotas(
    build: Any, visit: Visit, actions: list[str]
) -> None:
    house = build(scopes={"tenant": {"quotas": "9/hour"}})
    person = visit(of=house)
    acme = {"kind": "tenant", "name": "acme", "reason": "a plan"}
    person.post("/quotas", data=acme | {"what": "quotas", "quotas": "8/hour"})
    done = person.post("/quotas", data=acme | {"what": "limits", "quotas": "2/second\r\n9/minute"})
    assert "has limits of its own" in person.get(done.headers["location"]).text
    [both] = house.dispatcher.scope_settings()
    assert (both.quotas, both.limits) == (("8/hour",), ("2/second", "9/minute"))
    shown = person.get("/quotas").text
    assert "8/hour" in shown
    form = hidden(shown.split("2/second; 9/minute")[1], "/quotas/end")
    assert person.post("/quotas/end", data=form | acme).status_code == 303
    assert house.dispatcher.scope_settings()[0].limits == ()
    assert "page: unset_limits of tenant" in actions[-1]
    wrong = acme | {"what": "limits", "kind": "recipient", "quotas": "2/second"}
    assert person.post("/quotas", data=wrong).status_code == 422


@pytest.mark.parametrize("query", ["", "do=forget", "do=cancel&status=sent", "do=retry&overdue=on"])
def test_a_change_that_cannot_be_is_refused(person: TestClient, query: str) -> None:
    assert person.get(f"/messages/bulk?{query}").status_code == 422


def test_a_recipient_is_opted_out_and_in_again(
    house: House, person: TestClient, actions: list[str]
) -> None:
    message = house.submit(send_at=FAR + HOUR)
    made = person.post("/suppressions", data={"recipient": "ada", "channel": ""})
    assert made.headers["location"] == "/suppressions?recipient=ada&done=suppress&many=1"
    assert house.again(message).status is Status.CANCELLED
    done = person.get(made.headers["location"]).text
    assert "Done: opted out; 1 message cancelled." in done
    asked = person.get("/suppressions").text
    form = hidden(asked, "/suppressions/revoke")
    assert form == {"recipient": "ada"}
    assert person.post("/suppressions/revoke", data=form).status_code == 303
    assert list(house.dispatcher.suppressed()) == []
    assert actions == [
        "page: suppress of a recipient on every channel by ops",
        "page: unsuppress of a recipient on every channel by ops",
    ]


def test_a_recipient_is_erased_only_where_that_is_meant(
    house: House, person: TestClient, actions: list[str]
) -> None:
    message = house.submit(send_at=FAR + HOUR)
    house.dispatcher.suppress("ada")
    assert "Erase a recipient" in person.get("/suppressions").text
    assert person.post("/suppressions/erase", data={"recipient": "ada"}).status_code == 422
    assert house.again(message).recipient == "ada"
    sure = {"recipient": "ada", "sure": "yes", "keep_opt_out": "yes"}
    made = person.post("/suppressions/erase", data=sure)
    assert "Done: 1 message erased." in person.get(made.headers["location"]).text
    assert house.again(message).recipient == ""
    assert [opt_out.recipient for opt_out in house.dispatcher.suppressed()] == ["ada"]
    assert actions == ["page: erase of a recipient on every channel by ops"]


_NEEDED = {
    "cancel": Right.MESSAGES_CANCEL,
    "reschedule": Right.MESSAGES_WRITE,
    "retry": Right.OPERATE,
    "release": Right.OPERATE,
    "drop": Right.OPERATE,
}


def test_each_action_needs_its_right(house: House, visit: Visit) -> None:
    message = house.submit(send_at=FAR + HOUR)
    for verb, right in _NEEDED.items():
        client = visit(*all_but(right))
        assert client.post(f"/messages/{message.id}/{verb}").status_code == 403
        if verb in ("cancel", "reschedule", "retry"):
            assert client.get(f"/messages/bulk?do={verb}").status_code == 403
            form = {"do": verb, "messages": confirmed(house, message)}
            assert client.post("/messages/bulk", data=form).status_code == 403
    assert house.again(message) == message
    house.dispatcher.pause("channel", "memory")
    pause = {"kind": "channel", "name": "memory", "reason": "x"}
    client, bound = visit(*all_but(Right.OPERATE)), visit(channels=frozenset({"memory"}))
    assert [visitor.get("/pauses").status_code for visitor in (client, bound)] == [403, 403]
    for path in ("/pauses", "/pauses/end"):
        for visitor in (client, bound):
            assert visitor.post(path, data=pause).status_code == 403
    assert len(house.parts.pauses.in_force()) == 1


def test_a_bound_key_cannot_change_other_messages(house: House, visit: Visit) -> None:
    message = house.submit(send_at=FAR + HOUR)
    client = visit(channels=frozenset({"console"}))
    for verb in _NEEDED:
        assert client.post(f"/messages/{message.id}/{verb}").status_code == 404
    form = {"do": "cancel", "messages": confirmed(house, message)}
    assert "0 of 1 done" in client.post("/messages/bulk", data=form).text
    assert house.again(message) == message
