"""Gives a draft its body as it is stored: rendered from a template, validated by types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dispatcher.body_types import Channel
from dispatcher.errors import InvalidDraft
from dispatcher.message import Body, Draft, check_body
from dispatcher.settings import Settings
from dispatcher.submission.validation import PreparedDraft
from dispatcher.templating import Templates


class Bodies:
    """The bodies of drafts.

    Two types may judge a body: that of the caller's :class:`Channel`, which takes Python values,
    and that which the settings name for the channel, which takes the JSON of any caller. Where they
    are the same type, it judges once.
    """

    def __init__(self, settings: Settings, templates: Templates) -> None:
        self._settings = settings
        self._templates = templates
        self._has_types = bool(settings.body_types.channels)

    def prepare(self, draft: Draft) -> PreparedDraft:
        """Return the draft with its body as it is stored, and with its channel by name.

        Raises InvalidDraft, and InvalidValue for a type or a template that cannot be used at all.
        """
        typed = draft.channel if isinstance(draft.channel, Channel) else None
        if typed is not None:
            draft = replace(draft, channel=typed.name)
        if draft.body is None or draft.template is not None or draft.data is not None:  # else as is
            draft = self._templates.fill(draft)
        types = self._settings.body_types
        general = types.of(draft.channel) if self._has_types else None
        body, given_body = draft.body, None
        if body is None or (typed is None and general is None):
            return PreparedDraft(draft)
        if typed is not None:
            own = typed.body_type
            if draft.template is None:
                body, written = own.read(body)
                given_body = self._as_given(draft.body)
                given_body = written if given_body is None else given_body
            else:
                body = own.read_json(self._checked(body)[1])
            if general is not None and general.type == own.type:
                return PreparedDraft(replace(draft, body=body), given_body)
        if general is not None:
            if isinstance(body, Mapping):
                checked, text = self._checked(body)
                given_body = checked if given_body is None else given_body
                body = general.read_json(text)
            else:
                body, written = general.read(body)
                given_body = written if given_body is None else given_body
        return PreparedDraft(replace(draft, body=body), given_body)

    def _as_given(self, body: object) -> Body | None:
        """Return a mapping as it was given; None where it is another value, or not all JSON."""
        try:
            return self._checked(body)[0]
        except InvalidDraft:
            return None

    def _checked(self, body: object) -> tuple[Body, str]:
        most, depth = self._settings.body_max_bytes, self._settings.body_max_depth
        return check_body(body, max_bytes=most, max_depth=depth)
