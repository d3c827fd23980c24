"""``dispatcher serve``, the page and the HTTP API, and ``dispatcher keys`` for both."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.app import App
from dispatcher.cli import output
from dispatcher.cli.app import command, command_group
from dispatcher.cli.lists import complete_channel
from dispatcher.cli.services import collect_rarely, log_formatter, log_to_standard_error
from dispatcher.client import Dispatcher, app_of
from dispatcher.errors import InvalidValue, MissingExtra, needs
from dispatcher.quota import parse_length
from dispatcher.selection import read_scopes
from dispatcher.settings import LogFormat, Settings
from dispatcher.store.api import ApiKey
from dispatcher.submission.validation import checked_scopes, known_channel

_MOST_PORTS = 65_535
_SWITCH_SECONDS = 0.0005
"""How long a thread keeps the interpreter from others that wait for it. With Python's five
milliseconds a short call waits so long for each of its steps beside long ones."""
_OVERLAP = "1 day"
_OF_UP = "dispatcher up"
_KEY_OF_UP = timedelta(days=7)


@command_group
def keys() -> None:
    """Make, list, rotate and revoke the keys of the HTTP API."""


Name = Annotated[str, typer.Argument(metavar="NAME")]


@command("dispatcher serve", "dispatcher serve --host 0.0.0.0 --port 80", json="")
def serve(
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=_MOST_PORTS, help="0 for any free one.")] = 8000,
    rate: Annotated[
        str, typer.Option(help="Limit of calls for a key without a limit of its own.")
    ] = "100/second",
) -> None:
    """Serve the page at / and the HTTP API at /v1 until Ctrl-C.

    Both need a key: see `dispatcher keys`. It speaks plain HTTP: put it behind a server that ends
    TLS. Any number may run.
    """
    with needs("web", "web"):
        import uvicorn  # noqa: PLC0415 - an extra
    from dispatcher.web.pages import SERVER_OPTIONS, page_and_api  # noqa: PLC0415 - an extra

    with Dispatcher() as dispatcher:
        log_to_standard_error(dispatcher.settings.log_format)
        application = page_and_api(dispatcher, rate=rate)
        collect_rarely()
        sys.setswitchinterval(_SWITCH_SECONDS)
        uvicorn.run(application, host=host, port=port, **SERVER_OPTIONS)


@contextmanager
def logging_to(path: Path, log_format: LogFormat) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(log_formatter(log_format))
    logger = logging.getLogger("dispatcher.web")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        handler.close()


@contextmanager
def page_beside(settings: Settings, *, signs_in: bool) -> Iterator[str | None]:
    """Serve the page beside a command; yield a sentence with its address.

    With ``signs_in`` it asks for a key, which is new and in the sentence; else this machine may do
    anything. Actions are logged in ``logs/page.log``. None without the extra.
    """
    try:
        from dispatcher.web import Loopback, Right, page  # noqa: PLC0415 - an extra
        from dispatcher.web.access import add_key  # noqa: PLC0415 - an extra
        from dispatcher.web.pages import beside, page_and_api  # noqa: PLC0415 - an extra
    except MissingExtra:
        yield None
        return
    file = settings.data_dir / "logs" / "page.log"
    with logging_to(file, settings.log_format), Dispatcher(settings) as dispatcher:
        if not signs_in:
            with beside(page(dispatcher, access=Loopback(name="demo", rights=Right))) as address:
                yield f"page: {address}"
            return
        stored = app_of(dispatcher).api_keys
        stored.revoke([key.id for key in stored.named(_OF_UP) if key.is_valid])
        ends = app_of(dispatcher).clock.now() + _KEY_OF_UP
        key, token = add_key(stored, _OF_UP, expires_at=ends)
        try:
            with beside(page_and_api(dispatcher)) as address:
                yield f"page: {address} – sign in with {token}"
        finally:
            stored.revoke([key.id])


@command(
    "dispatcher keys add shop",
    "dispatcher keys add acme --right messages:read --right messages:write --count tenant=acme",
    of=keys,
)
def add(
    name: Name,
    right: Annotated[
        list[str] | None, typer.Option(help="A right; may be repeated. Default: all.")
    ] = None,
    channel: Annotated[
        list[str] | None,
        typer.Option(help="Only this channel; may be repeated.", autocompletion=complete_channel),
    ] = None,
    scopes: Annotated[
        str | None,
        typer.Option(
            "--count", metavar="KIND=NAME", help="Only messages of this scope: tenant=acme."
        ),
    ] = None,
    rate: Annotated[str | None, typer.Option(help="Limit of its calls: 100/second.")] = None,
    expires_in: Annotated[
        str | None, typer.Option(help="It ends after this time: 90 days.")
    ] = None,
) -> None:
    """Make a key and print it once: the store keeps only a digest."""
    from dispatcher.web.access import Right, add_key  # noqa: PLC0415 - an extra

    lasts = None if expires_in is None else parse_length(expires_in, "expires_in")
    if lasts is not None and lasts <= timedelta(0):
        raise InvalidValue("expires_in", "no time is left to it", "a length such as 90 days")
    with closing(App(Settings.load())) as app:
        named = read_scopes([scopes] if scopes else (), field="scopes")
        scope = next(iter(checked_scopes(named, app.settings).items()), None)
        key, token = add_key(
            app.api_keys,
            name,
            rights=right or tuple(Right),
            channels=[known_channel(text, app.settings) for text in channel or ()] or None,
            scope=scope,
            rate=rate,
            expires_at=None if lasts is None else app.clock.now() + lasts,
        )
    _show_new(key, token)


@command("dispatcher keys list", of=keys)
def list_() -> None:
    """List all keys, without their secrets."""
    with closing(App(Settings.load())) as app:
        stored = app.api_keys.named()
    others = {
        "rights": lambda key: ", ".join(key.rights),
        "channels": lambda key: ", ".join(key.channels or ("all",)),
        "scope": lambda key: "=".join(key.scope) if key.scope else "all",
        "last used (UTC)": lambda key: key.last_used_at or "never",
        "ends (UTC)": lambda key: key.revoked_at or key.expires_at or "never",
    }
    output.tell_rows(stored, ("id", "name"), others, otherwise="there are no keys")


@command("dispatcher keys rotate shop --overlap '1 hour'", of=keys)
def rotate(
    name: Name,
    overlap: Annotated[str, typer.Option(help="How long the old key is still valid.")] = _OVERLAP,
) -> None:
    """Make a second key of that name; the first one ends after the overlap."""
    from dispatcher.web.access import rotate_key  # noqa: PLC0415 - an extra

    length = parse_length(overlap, "overlap")
    with closing(App(Settings.load())) as app:
        key, token = rotate_key(app.api_keys, name, overlap=length)
    _show_new(key, token)


@command("dispatcher keys revoke shop", of=keys)
def revoke(name: Annotated[str, typer.Argument(metavar="NAME_OR_ID")]) -> None:
    """End the keys of that name, or one by its id. Servers refuse them within two seconds."""
    from dispatcher.web.access import revoke_key  # noqa: PLC0415 - an extra

    with closing(App(Settings.load())) as app:
        ended = revoke_key(app.api_keys, name)
    ids = [key.id for key in ended]
    output.tell(ids, f"revoked: {', '.join(ids)}")


def _show_new(key: ApiKey, token: str) -> None:
    note = f"id {key.id}, name {key.name}; the key is not shown again"
    output.tell({**key._asdict(), "key": token}, f"{token}\n{note}")
