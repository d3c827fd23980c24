"""Templates of the settings, rendered into the bodies of drafts that name them at submit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from dispatcher.channel import NAME, ChannelSettings
from dispatcher.errors import InvalidDraft, InvalidSettings, needs, quoted, refusal_of
from dispatcher.message import Draft, check_body

if TYPE_CHECKING:
    from dispatcher.templating.sandbox import Sandbox

_HTML = "html"
_FILE = re.compile(rf"({NAME.pattern})\.([a-z_]+)")


class Templates:
    """The templates of the channels, read and compiled when one is first asked for.

    A template is a body whose texts are written in Jinja2. What stands under the key ``html`` is
    escaped; a name without a value is an error. The body that is stored is the rendered one, so
    that what was promised is what is sent, whatever becomes of the template.
    """

    def __init__(
        self, channels: Mapping[str, ChannelSettings], *, max_bytes: int, max_depth: int
    ) -> None:
        self._channels = channels
        self._max_bytes = max_bytes
        self._max_depth = max_depth
        self._sources = cache(self._read)
        self._template = cache(self._compile)

    def fill(self, draft: Draft) -> Draft:
        """Return the draft with a body, if its channel is known."""
        name = draft.template
        if name is None:
            if draft.data is not None:
                raise InvalidDraft("data", "given without a template", "no data, or a template")
            if draft.body is None:
                raise InvalidDraft("body", "neither body nor template given", "one of them")
            return draft
        if draft.body is not None:
            raise InvalidDraft("template", "given together with a body", "one of them")
        if not isinstance(draft.channel, str) or draft.channel not in self._channels:
            return draft  # that is refused by its own name
        data, _ = check_body(
            {} if draft.data is None else draft.data,
            max_bytes=self._max_bytes,
            max_depth=self._max_depth,
            field="data",
        )
        template = self._template(draft.channel, self._known(draft.channel, name))
        return replace(draft, body=_rendered(template, data, self._max_bytes))

    def problems(self) -> Mapping[str, InvalidSettings | None]:
        """Compile every template of every channel; return what is wrong with each, by its path."""
        problems: dict[str, InvalidSettings | None] = {}
        for name in self._channels:
            try:
                templates = sorted(self._sources(name))
            except InvalidSettings as error:
                problems[f"channels.{name}"] = error
                continue
            for template in templates:
                path = f"channels.{name}.templates.{template}"
                problems[path] = refusal_of(partial(self._template, name, template))
        return problems

    def _known(self, channel: str, name: object) -> str:
        sources = self._sources(channel)
        if not isinstance(name, str) or name not in sources:
            known = ", ".join(sorted(sources)) or "none"
            problem = f"there is no template {quoted(name)} on this channel"
            raise InvalidDraft("template", problem, f"one of its templates: {known}")
        return name

    def _compile(self, channel: str, name: str) -> Any:
        with needs("templates", f"channels.{channel}.templates"):
            from jinja2 import FileSystemLoader  # noqa: PLC0415 - an extra

            from dispatcher.templating.sandbox import Sandbox  # noqa: PLC0415 - needs the extra
        directory = self._channels[channel].templates_dir
        loader = None if directory is None else FileSystemLoader(directory)
        plain, html = (Sandbox(escapes=escapes, loader=loader) for escapes in (False, True))
        path, body = self._sources(channel)[name]
        return _compiled(body, path, plain, html)

    def _read(self, channel: str) -> dict[str, tuple[str, Any]]:
        """Return the templates of a channel by name: what errors call each, and its body."""
        field, settings = f"channels.{channel}.templates", self._channels[channel]
        sources = {name: (f"{field}.{name}", body) for name, body in settings.templates.items()}
        directory = settings.templates_dir
        if directory is None:
            return sources
        try:
            files = sorted(path for path in directory.iterdir() if path.is_file())
            texts = [(_FILE.fullmatch(path.name), path.read_text("utf-8")) for path in files]
        except (OSError, UnicodeError) as error:
            problem = f"{directory} cannot be read ({type(error).__name__})"
            raise InvalidSettings(
                f"{field}_dir", problem, "a folder of templates in UTF-8"
            ) from None
        for match, text in texts:
            if match is None:
                continue
            own_path = f"{directory}/{match[1]}"
            path, body = sources.setdefault(match[1], (own_path, {}))
            if path != own_path:
                problem = f"template {quoted(match[1])} exists twice"
                raise InvalidSettings(f"{field}_dir", problem, "one template of that name")
            body[match[2]] = text
        return sources


def _compiled(body: Any, path: str, plain: Sandbox, html: Sandbox) -> Any:
    if isinstance(body, str):
        return plain.compiled_text(path, body)
    if isinstance(body, Mapping):
        return {
            key: _compiled(part, f"{path}.{key}", html if key == _HTML else plain, html)
            for key, part in body.items()
        }
    if isinstance(body, list):
        return [_compiled(part, f"{path}[{index}]", plain, html) for index, part in enumerate(body)]
    return body


def _rendered(template: Any, data: Mapping[str, Any], limit: int) -> Any:
    if isinstance(template, Mapping):
        return {key: _rendered(part, data, limit) for key, part in template.items()}
    if isinstance(template, list):
        return [_rendered(part, data, limit) for part in template]
    return template.render(data, limit=limit) if hasattr(template, "render") else template
