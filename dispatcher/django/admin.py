"""The admin: messages by the dispatcher's own filters, their stories, changes, and opt-outs.

The pages read and change through the dispatcher's calls, as the command line does: Django's lists
would count all rows for each page. Without ``view_body`` a user sees no recipient and no content,
and cannot look for one either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse

from dispatcher.django.models import Message as Model
from dispatcher.django.models import choices
from dispatcher.django.project import dispatcher
from dispatcher.errors import DispatcherError, MessageNotFound, Unavailable
from dispatcher.message import Message, Status

_PAGE = 50
_MOST_SUPPRESSIONS = 200
_SEE_BODY = "view_body"
_PERSONAL = ("recipient", "scope", "scopes", "body", "idempotency_key", "last_error")
"""The fields of a message that may name its recipient, or hold what it says."""


class FilterForm(forms.Form):
    """The filters of :class:`dispatcher.Wanted`."""

    status = forms.ChoiceField(required=False, choices=lambda: [("", "all"), *choices(Status)])
    channel = forms.ChoiceField(
        required=False, choices=lambda: [("", "all"), *choices(dispatcher.settings.channels)]
    )
    recipient = forms.CharField(required=False)
    scope = forms.CharField(required=False)
    idempotency_key = forms.CharField(required=False)
    key_prefix = forms.CharField(required=False)
    from_at = forms.CharField(required=False, label="from", help_text="2027-03-01, or with a time")
    until_at = forms.CharField(required=False, label="until")
    zone = forms.CharField(required=False)
    overdue = forms.BooleanField(required=False)


class MessageAction(NamedTuple):
    permission: str
    status: Status
    done: str


ACTIONS = {
    "cancel": MessageAction("cancel_message", Status.SCHEDULED, "cancelled"),
    "move": MessageAction("move_message", Status.SCHEDULED, "moved"),
    "retry": MessageAction("retry_message", Status.FAILED, "given further attempts"),
    "release": MessageAction("release_message", Status.HELD, "released"),
    "drop": MessageAction("release_message", Status.HELD, "dropped"),
}


@admin.register(Model)
class MessageAdmin(admin.ModelAdmin):
    """Messages. They are neither added nor edited nor deleted here."""

    def _nobody(self, *_: Any, **__: Any) -> bool:
        return False

    # Programs submit; a deleted row would keep its reservation; a change has its own permission.
    has_add_permission = has_delete_permission = has_change_permission = _nobody

    def get_urls(self) -> list[URLPattern]:
        view, name = self.admin_site.admin_view, "dispatcher_message"
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path("suppressions/", view(self.suppressions_view), name=f"{name}_suppressions"),
            path("<uuid:object_id>/change/", view(self.change_view), name=f"{name}_change"),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        _check(request, "view_message")
        sees_all = _may(request, _SEE_BODY)
        form = FilterForm(request.GET)
        if not sees_all:
            for name in ("recipient", "scope", "idempotency_key", "key_prefix"):
                del form.fields[name]
        page, problem, status = None, "", 200
        try:
            if form.is_valid():
                after = request.GET.get("after") or None
                filters = {name: value for name, value in form.cleaned_data.items() if value}
                page = dispatcher.list(limit=_PAGE, after=after, **filters)
        except DispatcherError as error:
            problem, status = str(error), _status_of(error)
        context = {
            "title": "Messages",
            "form": form,
            "page": page,
            "problem": problem,
            "sees_all": sees_all,
            "query": request.GET,
            "sees_suppressions": sees_all and _may(request, "view_suppression"),
        }
        return self._page(request, "messages", context | (extra_context or {}), status)

    def change_view(
        self, request: HttpRequest, object_id: Any, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        del form_url
        _check(request, "view_message")
        if request.method == "POST":
            return self._changed(request, str(object_id))
        sees_all = _may(request, _SEE_BODY)
        try:
            story = dispatcher.story(object_id)
        except MessageNotFound as error:
            raise Http404(str(error)) from None
        except Unavailable as error:
            values = {"title": "Message", "problem": str(error)}
            return self._page(request, "message", values, _status_of(error))
        message = story.message
        names = [name for name in Message.__dataclass_fields__ if sees_all or name not in _PERSONAL]
        context: dict[str, Any] = {
            "title": f"Message {message.id}",
            "message": message,
            "story": story,
            "fields": [(name, _shown(getattr(message, name))) for name in names],
            "sees_all": sees_all,
            "actions": [
                name
                for name, action in ACTIONS.items()
                if action.status is message.status and _may(request, action.permission)
            ],
        }
        return self._page(request, "message", context | (extra_context or {}))

    def suppressions_view(self, request: HttpRequest) -> HttpResponse:
        _check(request, "view_suppression", "view_body")
        recipient = request.GET.get("recipient", "").strip()
        if request.method == "POST":
            return self._suppressed(request)
        suppressions, problem, status = [], "", 200
        try:
            suppressions = [*islice(dispatcher.suppressed(recipient or None), _MOST_SUPPRESSIONS)]
        except DispatcherError as error:
            problem, status = str(error), _status_of(error)
        context = {
            "title": "Suppressions",
            "suppressions": suppressions,
            "more": len(suppressions) == _MOST_SUPPRESSIONS,
            "recipient": recipient,
            "channels": [*dispatcher.settings.channels],
            "problem": problem,
            "adds": _may(request, "add_suppression"),
            "deletes": _may(request, "delete_suppression"),
        }
        return self._page(request, "suppressions", context, status)

    def _changed(self, request: HttpRequest, message_id: str) -> HttpResponse:
        posted = request.POST
        name = posted.get("action", "")
        action = ACTIONS.get(name)
        if action is None:
            raise Http404("there is no such action")
        _check(request, action.permission)
        try:
            if name == "move":
                dispatcher.reschedule(
                    message_id,
                    send_at=posted.get("send_at", ""),
                    zone=posted.get("zone") or None,
                    on_conflict="shift" if posted.get("shift") else "reject",
                )
            elif name == "retry":
                dispatcher.retry(message_id, perhaps_sent=bool(posted.get("perhaps_sent")))
            else:
                getattr(dispatcher, name)(message_id)
        except MessageNotFound as error:
            raise Http404(str(error)) from None
        except DispatcherError as error:
            # Its text may name a scope.
            is_shown = _may(request, _SEE_BODY) or isinstance(error, Unavailable)
            messages.error(request, str(error) if is_shown else type(error).__name__)
        else:
            self.log_change(request, Model(id=message_id), action.done)
            messages.success(request, f"The message was {action.done}.")
        return HttpResponseRedirect(reverse("admin:dispatcher_message_change", args=[message_id]))

    def _suppressed(self, request: HttpRequest) -> HttpResponse:
        recipient, channel = request.POST.get("recipient", ""), request.POST.get("channel") or None
        revokes = request.POST.get("action") == "unsuppress"
        _check(request, "delete_suppression" if revokes else "add_suppression")
        try:
            if revokes:
                dispatcher.unsuppress(recipient, channel=channel)
                messages.success(request, "The suppression was revoked.")
            else:
                cancelled = dispatcher.suppress(recipient, channel=channel)
                messages.success(request, f"Suppressed; {cancelled} messages were cancelled.")
        except DispatcherError as error:
            messages.error(request, str(error))
        return HttpResponseRedirect(reverse("admin:dispatcher_message_suppressions"))

    def _page(
        self, request: HttpRequest, name: str, context: Mapping[str, Any], status: int = 200
    ) -> HttpResponse:
        vars(request)["current_app"] = self.admin_site.name
        everywhere = self.admin_site.each_context(request) | {"opts": self.opts}
        template = f"admin/dispatcher/{name}.html"
        return TemplateResponse(request, template, everywhere | dict(context), status=status)


def _may(request: HttpRequest, *permissions: str) -> bool:
    user: Any = request.user
    return bool(user.has_perms([f"dispatcher.{name}" for name in permissions]))


def _check(request: HttpRequest, *permissions: str) -> None:
    if not _may(request, *permissions):
        raise PermissionDenied


def _shown(value: object) -> object:
    is_json = isinstance(value, Mapping)
    return json.dumps(value, indent=2, ensure_ascii=False) if is_json else value


def _status_of(error: DispatcherError) -> int:
    return 503 if isinstance(error, Unavailable) else 400
