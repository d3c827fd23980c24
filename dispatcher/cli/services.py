"""Commands for servers: up, worker, beat, migrate, serve, the keys for it; how they write logs."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated

import typer
from celery.signals import after_setup_logger, after_setup_task_logger, worker_ready

from dispatcher.app import App, prometheus
from dispatcher.celery.queue import check_url
from dispatcher.cli import output
from dispatcher.cli.app import command, command_group, say_error, say_warning, until_stopped
from dispatcher.cli.doctor import check_before_start
from dispatcher.cli.lists import complete_channel
from dispatcher.client import Dispatcher, app_of
from dispatcher.errors import InvalidValue, MissingExtra, needs
from dispatcher.quota import parse_length
from dispatcher.selection import read_scopes
from dispatcher.settings import (
    PARENT_VARIABLE,
    PREFIX,
    LogFormat,
    Settings,
    embedded_addresses,
    make_private,
)
from dispatcher.store.migrate import migrate as migrate_store
from dispatcher.submission.validation import checked_scopes, known_channel
from dispatcher.telemetry.journal import FIELDS
from dispatcher.times.send_time import as_text

if TYPE_CHECKING:
    from dispatcher.web.keys import ApiKey

_PARENT_SECONDS = 0.5
_LOOK_SECONDS = 0.2
"""Interval of checks: a signal that another thread receives does not wake the main thread."""
_GREENLETS = {"eventlet", "gevent"}
_COUNTERS = "PROMETHEUS_MULTIPROC_DIR"
_PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
_MOST_PORTS = 65_535
_SWITCH_SECONDS = 0.0005
"""How long a thread keeps the interpreter from others that wait for it. With Python's five
milliseconds a short call waits so long for each of its steps beside long ones."""
_OVERLAP = "1 day"
_OF_UP = "dispatcher up"
_KEY_OF_UP = timedelta(days=7)
_QUIET = ("celery.worker.strategy", "celery.app.trace", "celery.beat")

MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=_MOST_PORTS,
        help="Answer Prometheus and the probes of Kubernetes there; 0 for any free port.",
    ),
]


@command("dispatcher up", json="")
def up() -> None:
    """Start Redis, SQLite, a worker and a beat in the data folder; run until Ctrl-C.

    Needs no other service. From a second shell in the same folder every command and
    `Dispatcher()` then work.
    """
    from dispatcher.embedded import environment  # noqa: PLC0415 - workers need no servers

    settings = Settings.load()
    folder = settings.data_dir
    own = embedded_addresses(folder)
    values = settings.model_dump(exclude={"data_dir", *own})
    elsewhere = [name for name, address in own.items() if getattr(settings, name) != address]
    with until_stopped() as stopped, environment(folder, **values, tell=say_error) as running:
        output.out.print(f"up in {running.data_dir} – Ctrl-C ends it")
        names = [name for name, named in running.channels.items() if named.transport == "console"]
        if elsewhere:
            say_warning(
                f"the settings name servers of their own ({', '.join(elsewhere)}): what a second "
                "shell submits goes there and is not sent from here; leave these settings out, or "
                "run `dispatcher worker` and `dispatcher beat` instead"
            )
        else:
            name = next(iter(names or running.channels))
            channel = running.channels[name]
            recipient = "+4915112345678" if channel.recipients == "phone" else "ada@example.org"
            output.out.print(
                f"try, from a second shell here: dispatcher submit --channel {name} "
                f'--recipient {recipient} --text hello --send-in "5 seconds"',
                soft_wrap=True,
            )
        log = running.data_dir / "logs" / "worker.log"
        if names:
            said = f"what goes to {', '.join(names)} is shown here, and kept in {log}"
            output.out.print(said, soft_wrap=True)
        with page_beside(running, signs_in=True) as sentence:
            if sentence is not None:
                output.out.print(sentence, soft_wrap=True)
            for lines in _written_by(names, log):
                for line in lines:
                    output.out.print(line, soft_wrap=True)
                if stopped.wait(_LOOK_SECONDS):
                    break
        output.out.print("stopping …")


def _written_by(names: Sequence[str], path: Path) -> Iterator[list[str]]:
    """Yield, each time, the lines that these console channels have written to a log since then."""
    starts, rest = tuple(f"[{name}] to " for name in names), ""
    with path.open(errors="replace") as log:
        log.seek(0, os.SEEK_END)
        while True:
            *lines, rest = (rest + log.read()).split("\n")
            yield [line for line in lines if line.startswith(starts)]


@command(
    "dispatcher worker -c 8",
    "dispatcher worker --queues=dispatcher.sms",
    json="",
    context_settings=_PASS_ON,
)
def worker(
    context: typer.Context,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, max=32)] = 16,
    pool: Annotated[
        str, typer.Option("--pool", "-P", help="Celery's pool; not gevent, not eventlet.")
    ] = "threads",
    no_doctor: Annotated[
        bool, typer.Option("--no-doctor", help="Start although the doctor finds errors.")
    ] = False,
    metrics_port: MetricsPort = None,
) -> None:
    """Start a Celery worker with the recommended options. Further options go to Celery.

    It does not start where the database lacks migrations, Redis evicts or is too old, or the
    clocks of this machine and the database are more than a second apart.

    On SIGTERM it finishes the sends that have begun: leave it transport_timeout and 10 s (20 s by
    default) before a kill. After a kill the outcome of each send in flight is unknown.
    """
    if pool in _GREENLETS:  # they replace parts of Python, which must come before any import
        raise InvalidValue(
            "--pool",
            f"{pool} would deliver nothing in `dispatcher worker`",
            "threads, the default (`dispatcher worker -c 32`); or dispatcher.install in a Celery "
            "app of yours, and `celery -A your_app worker -P gevent`",
        )
    settings = _settings(metrics_port)
    if settings.metrics_port is not None:
        context.with_resource(_counting_together())
    with closing(App(settings)) as app:
        app.build_for_sending()
    if not no_doctor:
        check_before_start(settings)
    queues = ",".join(settings.queues)
    worker_ready.connect(collect_rarely, weak=False)
    _write_logs(settings.log_format)
    _celery(
        "worker", f"--pool={pool}", f"--concurrency={concurrency}", f"--queues={queues}",
        f"--hostname=worker-{token_hex(4)}@%h", "--without-gossip", "--without-mingle",
        "--loglevel=INFO", *context.args,
    )  # fmt: skip


@command("dispatcher beat", json="", context_settings=_PASS_ON)
def beat(context: typer.Context, metrics_port: MetricsPort = None) -> None:
    """Start a Celery beat, which starts the sweep. Any number may run."""
    settings = _settings(metrics_port)
    if settings.metrics_port is not None:
        prometheus()  # a library that is missing stops the start
    _write_logs(settings.log_format)
    _celery("beat", "--pidfile=", "--loglevel=INFO", *context.args)


@command("dispatcher migrate")
def migrate() -> None:
    """Bring the database to the schema of this version. Safe to repeat."""
    settings = Settings.load()
    if settings.database_url == embedded_addresses(settings.data_dir)["database_url"]:
        with suppress(OSError):  # SQLite then says that it cannot open the file
            make_private(settings.data_dir)
    with closing(App(settings)) as app:
        revision = migrate_store(app.database)
    text = f"the database is at revision {revision}"
    output.tell({"revision": revision}, text)


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


@command_group
def keys() -> None:
    """Make, list, rotate and revoke the keys of the HTTP API."""


KeyName = Annotated[str, typer.Argument(metavar="NAME")]


@command(
    "dispatcher keys add shop",
    "dispatcher keys add acme --right messages:read --right messages:write --count tenant=acme",
    of=keys,
)
def add(
    name: KeyName,
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
    from dispatcher.web import Right  # noqa: PLC0415 - an extra
    from dispatcher.web.keys import ApiKeys  # noqa: PLC0415 - an extra

    lasts = None if expires_in is None else parse_length(expires_in, "expires_in")
    if lasts is not None and lasts <= timedelta(0):
        raise InvalidValue("expires_in", "leaves no time", "a length such as 90 days")
    with closing(App(Settings.load())) as app:
        named = read_scopes([scopes] if scopes else (), field="scopes")
        scope = next(iter(checked_scopes(named, app.settings).items()), None)
        key, token = ApiKeys(app.database).add(
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
    from dispatcher.web.keys import ApiKeys  # noqa: PLC0415 - an extra

    with closing(App(Settings.load())) as app:
        stored = ApiKeys(app.database).named()
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
    name: KeyName,
    overlap: Annotated[str, typer.Option(help="How long the old key is still valid.")] = _OVERLAP,
) -> None:
    """Make a second key of that name; the first one ends after the overlap."""
    from dispatcher.web.keys import ApiKeys  # noqa: PLC0415 - an extra

    length = parse_length(overlap, "overlap")
    with closing(App(Settings.load())) as app:
        key, token = ApiKeys(app.database).rotate(name, overlap=length)
    _show_new(key, token)


@command("dispatcher keys revoke shop", of=keys)
def revoke(name: Annotated[str, typer.Argument(metavar="NAME_OR_ID")]) -> None:
    """End the keys of that name, or one by its id. Servers refuse them within two seconds."""
    from dispatcher.web.keys import ApiKeys  # noqa: PLC0415 - an extra

    with closing(App(Settings.load())) as app:
        ids = ApiKeys(app.database).revoke(name)
    output.tell(ids, f"revoked: {', '.join(ids)}")


def _show_new(key: ApiKey, token: str) -> None:
    note = f"id {key.id}, name {key.name}; the key is not shown again"
    output.tell({**key._asdict(), "key": token}, f"{token}\n{note}")


def _settings(metrics_port: int | None) -> Settings:
    if metrics_port is not None:
        os.environ[f"{PREFIX}METRICS_PORT"] = str(metrics_port)  # for the App that tasks use
    settings = Settings.load()
    check_url(settings)
    return settings


def _celery(*arguments: str) -> None:
    from dispatcher.celery_app import app  # noqa: PLC0415 - made from the settings just checked

    _end_with_parent()
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    app.start(list(arguments))


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON.

    ``at`` (ISO 8601, UTC), ``level``, ``logger``, ``process``, ``text``, for a transition of a
    message its fields (:data:`dispatcher.telemetry.journal.FIELDS`), and ``traceback`` where there
    is one. It leaves out attributes of other libraries, which may contain anything.
    """

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line = {
            "at": as_text(at),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "text": record.getMessage(),
        }
        line |= {name: vars(record)[name] for name in FIELDS if name in vars(record)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_formatter(log_format: LogFormat) -> logging.Formatter:
    if log_format == "json":
        return JsonFormatter()
    return logging.Formatter("[%(asctime)s: %(levelname)s] %(message)s")


def _write_logs(log_format: LogFormat) -> None:
    def write_json(logger: logging.Logger, **_: object) -> None:
        for handler in logger.handlers:
            handler.setFormatter(JsonFormatter())

    if log_format == "json":
        after_setup_logger.connect(write_json, weak=False)
        after_setup_task_logger.connect(write_json, weak=False)


def log_to_standard_error(log_format: LogFormat) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(log_formatter(log_format))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


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
        from dispatcher.web.keys import ApiKeys  # noqa: PLC0415 - an extra
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
        keys = ApiKeys(app_of(dispatcher).database)
        if any(key.is_valid for key in keys.named(_OF_UP)):
            keys.revoke(_OF_UP)
        ends = app_of(dispatcher).clock.now() + _KEY_OF_UP
        key, token = keys.add(_OF_UP, expires_at=ends)
        try:
            with beside(page_and_api(dispatcher)) as address:
                yield f"page: {address} – sign in with {token}"
        finally:
            keys.revoke(key.id)


@contextmanager
def _counting_together() -> Iterator[None]:
    """Let all processes of a worker count in one folder; prometheus-client reads it on import."""
    if os.environ.get(_COUNTERS):
        yield
        return
    with tempfile.TemporaryDirectory(prefix="dispatcher-metrics-") as folder:
        os.environ[_COUNTERS] = folder
        yield


def collect_rarely(**_: object) -> None:
    """Spare all threads the 0.1 s for which Python's own thresholds now and then stop them."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 1_000)


def _end_with_parent() -> None:
    """End this process when the embedded environment that started it has died."""
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(_PARENT_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent", daemon=True).start()
