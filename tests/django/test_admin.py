"""The admin shows what the dispatcher's calls read, and changes what a user may change."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from html import unescape
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client

from dispatcher import Message, Status
from dispatcher.django import admin
from dispatcher.django.project import dispatcher
from tests.django.conftest import Project
from tests.django.test_atomic import submit

LIST = "/admin/dispatcher/message/"
SUPPRESSIONS = f"{LIST}suppressions/"
ALL = (
    "view_message", "view_body", "cancel_message", "move_message", "retry_message",
    "release_message", "view_suppression", "add_suppression", "delete_suppression",
)  # fmt: skip
pytestmark = pytest.mark.parametrize("django_url", ["sqlite"], indirect=True)


def user(*permissions: str) -> Client:
    """Log a member of the staff in who has these permissions and no others."""

    one = User.objects.create_user(f"user-{uuid4()}", is_staff=True)
    one.user_permissions.set(
        Permission.objects.filter(content_type__app_label="dispatcher", codename__in=permissions)
    )
    assert one.user_permissions.count() == len(permissions)
    client = Client()
    client.force_login(one)
    return client


def story(message: Message) -> str:
    return f"{LIST}{message.id}/change/"


def shown(client: Client, address: str, status: int = 200) -> str:
    answer = client.get(address)
    assert answer.status_code == status
    return unescape(answer.content.decode())


def change(client: Client, message: Message, status: int = 302, **fields: Any) -> Message:
    answer = client.post(story(message), fields)
    assert answer.status_code == status
    return dispatcher.get(message.id)


def ids(page: str, messages: Iterable[Message]) -> list[bool]:
    return [str(message.id) in page for message in messages]


def test_messages_are_listed_by_the_filters(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, grace = submit(project), submit(project, "grace@example.org", channel="email")
    client = user(*ALL)
    for query, expected in {
        "": [True, True],
        "?channel=email": [False, True],
        "?recipient=ada@example.org": [True, False],
        "?status=sent": [False, False],
        "?status=scheduled&until_at=2020-01-01": [False, False],
        f"?after={grace.id}": [True, False],
        "?scope=grace@example.org": [False, True],
    }.items():
        assert ids(shown(client, LIST + query), [ada, grace]) == expected, query
    assert "accepted" in shown(client, f"{LIST}?from_at=soon", 400)
    monkeypatch.setattr(admin, "_PAGE", 1)
    first = shown(client, LIST)
    assert ids(first, [ada, grace]) == [False, True]
    [_, older] = first.split('<p class="paginator"><a href="')
    assert ids(shown(client, LIST + older.split('"')[0]), [ada, grace]) == [True, False]
    assert shown(client, "/admin/").count("dispatcher/message") > 0


def test_a_story_has_the_attempts_and_the_reservations(project: Project) -> None:
    message = submit(project)
    page = shown(user(*ALL), story(message))
    for text in ("ada@example.org", '"text": "é"', "Reservations", "None yet.", "Do you mean it?"):
        assert text in page
    forms = re.findall(r'<form method="post"[^>]*>(.*?)</form>', page, re.DOTALL)
    of_message = [form for form in forms if 'name="action"' in form]
    assert all('name="csrfmiddlewaretoken"' in form for form in of_message)
    actions = [re.findall('name="action" value="([a-z]+)"', form) for form in of_message]
    assert actions == [["cancel"], ["move"]]
    assert shown(user(*ALL), f"{LIST}{uuid4()}/change/", 404)


def test_nothing_personal_is_shown_without_the_permission(project: Project) -> None:
    message = submit(project, idempotency_key="ada-17", scopes=None)
    project.house.sql("UPDATE dispatcher_messages SET last_error = 'no box for ada'")
    client = user("view_message", "cancel_message", "view_suppression")
    assert "no box for ada" in shown(user(*ALL), LIST)
    for address in (LIST, story(message), f"{LIST}?recipient=nobody&scope=x&key_prefix=b"):
        page = shown(client, address)
        assert str(message.id) in page
        # Ids are hexadecimal, and may have "ada" in them.
        assert not any(text in page for text in ("ada@", "ada-17", "for ada", "é"))
    assert client.get(SUPPRESSIONS).status_code == 403


def test_each_change_has_its_permission(project: Project) -> None:
    message = submit(project)
    before = message.send_at
    moved = (before + timedelta(hours=3)).isoformat()
    for permission, options in {
        "cancel_message": {"action": "cancel"},
        "move_message": {"action": "move", "send_at": moved},
        "retry_message": {"action": "retry"},
        "release_message": {"action": "drop"},
    }.items():
        others = user(*({"view_message", *ALL} - {permission}))
        assert change(others, message, 403, **options) == message
    assert change(user("view_message"), message, 404, action="delete") == message
    change(user("view_message", "move_message"), message, action="move", send_at=moved)
    assert dispatcher.get(message.id).send_at == before + timedelta(hours=3)
    cancelled = change(user("view_message", "cancel_message"), message, action="cancel")
    assert cancelled.status is Status.CANCELLED
    assert not project.house.all_members()


def test_a_change_is_in_the_history_and_a_refused_one_is_not(project: Project) -> None:
    message, client = submit(project), user(*ALL)
    answer = client.post(story(message), {"action": "move", "send_at": "soon"}, follow=True)
    assert "accepted" in unescape(answer.content.decode())
    assert not LogEntry.objects.filter(object_id=message.id).exists()
    change(client, message, action="cancel")
    [entry] = LogEntry.objects.filter(object_id=message.id)
    assert (entry.get_change_message(), entry.object_repr) == ("cancelled", str(message.id))


def test_failed_and_held_messages_are_decided_on(project: Project) -> None:
    failed, held = submit(project), submit(project, "grace@example.org")
    project.house.sql(
        "UPDATE dispatcher_messages SET status = 'failed', finished_at = created_at, "
        "attempt_count = 10 WHERE recipient = 'ada@example.org'"
    )
    project.house.sql(
        "UPDATE dispatcher_messages SET status = 'held' WHERE recipient = 'grace@example.org'"
    )
    client = user(*ALL)
    assert "even if it may have been sent" in shown(client, story(failed))
    assert change(client, failed, action="retry").status is Status.SCHEDULED
    assert change(client, held, action="release").status is Status.SCHEDULED


def test_recipients_opt_out_and_in(project: Project) -> None:
    message, client = submit(project), user(*ALL)
    form = {"action": "suppress", "recipient": "ada@example.org", "channel": ""}
    assert "1 messages" in client.post(SUPPRESSIONS, form, follow=True).content.decode()
    assert dispatcher.get(message.id).status is Status.CANCELLED
    page = shown(client, SUPPRESSIONS)
    assert "ada@example.org" in page
    assert 'name="csrfmiddlewaretoken"' in page
    assert "None." in shown(client, f"{SUPPRESSIONS}?recipient=grace@example.org")
    reader = user("view_suppression", "view_body", "view_message")
    assert reader.post(SUPPRESSIONS, form).status_code == 403
    assert reader.post(SUPPRESSIONS, form | {"action": "unsuppress"}).status_code == 403
    client.post(SUPPRESSIONS, form | {"action": "unsuppress"})
    assert [*dispatcher.suppressed()] == []


def test_strangers_see_nothing(project: Project) -> None:
    message = submit(project)
    for address in (LIST, story(message), SUPPRESSIONS):
        assert Client().get(address)["Location"].startswith("/admin/login/")
        assert user().get(address).status_code == 403
    for address in (f"{LIST}add/", f"{LIST}{message.id}/delete/", f"{LIST}{message.id}/history/"):
        assert user(*ALL).get(address).status_code == 404


def test_without_redis_it_still_shows(project: Project) -> None:
    message = submit(project)
    project.house.redis.flushall()
    client = user(*ALL)
    assert "Redis does not answer" in shown(client, story(message))
    assert str(message.id) in shown(client, LIST)
