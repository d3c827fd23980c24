"""Connections of a process to the hosts of webhooks: kept for a moment, one request at a time."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock

import certifi
import httpcore

from dispatcher.times.clock import Clock
from dispatcher.transports.library_logs import quiet, silence
from dispatcher.transports.webhook.addresses import Addresses
from dispatcher.transports.webhook.target import Target
from dispatcher.transports.webhook.wire import Resolve, Wire, resolve

_KEEP_SECONDS = 4.0
"""How long an idle connection is kept: less than the 5 s after which many servers end theirs."""
_KEEP = 64
_HEAD_BYTES = 64 * 1024
"""How much may come before an answer's body."""
_ANSWER_BYTES = 16 * 1024
"""How much of an answer's body is read, so that its connection can be used again."""
_ANSWER_SECONDS = 0.5
_TALKATIVE = "httpcore"
"""A library that writes hosts, paths and headers at DEBUG."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server said: its status, and its headers with names in lower case."""

    status: int
    headers: Mapping[str, str]


@dataclass(slots=True, eq=False)
class _Connection:
    key: tuple[str, str, int]
    wire: Wire
    http: httpcore.HTTPConnection
    idle_since: float = 0.0


class Connections:
    """Posts to any number of hosts, from any number of threads.

    A connection has one request at a time: requests that share one would share its end, and leave
    as many messages with an unknown outcome as were under way.
    """

    def __init__(
        self,
        addresses: Addresses,
        clock: Clock,
        *,
        tls: ssl.SSLContext,
        resolver: Resolve = resolve,
    ) -> None:
        self._addresses = addresses
        self._clock = clock
        self._tls = tls
        self._resolver = resolver
        self._lock = Lock()
        self._idle: list[_Connection] = []
        silence(_TALKATIVE)

    def post(
        self, target: Target, headers: Mapping[str, str], content: bytes, *, seconds: float
    ) -> Answer:
        """Post ``content`` and return the answer, in ``seconds`` at most, names resolved included.

        Raises what :mod:`httpcore` and :mod:`dispatcher.transports.webhook.wire` raise, inside
        :class:`Broken` where something was written by then.
        """
        connection = self._take(target)
        started = self._clock.monotonic()
        connection.wire.deadline = started + seconds
        connection.wire.is_used = False
        connection.wire.most = _HEAD_BYTES
        request = httpcore.Request(
            "POST",
            httpcore.URL(
                scheme=target.scheme, host=target.host, port=target.port, target=target.path
            ),
            headers=[("Host", target.authority), *headers.items()],
            content=content,
        )
        is_kept = False
        try:
            with quiet():
                with _told(connection.wire):
                    response = connection.http.handle_request(request)
                is_kept = self._finish(connection, response)
        finally:
            if is_kept:
                self._keep(connection)
            else:
                _end(connection)
        named = {name.decode("latin-1").lower(): value for name, value in response.headers}
        return Answer(
            response.status, {name: value.decode("latin-1") for name, value in named.items()}
        )

    def close(self) -> None:
        """End the connections that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            _end(connection)

    def _take(self, target: Target) -> _Connection:
        """Return a connection that the caller has to itself: a kept one or a new one."""
        key = (target.scheme, target.host, target.port)
        while True:
            with self._lock:
                connection = next((each for each in reversed(self._idle) if each.key == key), None)
                if connection is None:
                    break
                self._idle.remove(connection)
            is_fresh = self._clock.monotonic() - connection.idle_since < _KEEP_SECONDS
            if is_fresh and connection.http.is_idle() and not connection.wire.is_readable():
                return connection
            _end(connection)
        wire = Wire(self._addresses, self._clock, self._resolver)
        http = httpcore.HTTPConnection(
            httpcore.Origin(target.scheme.encode(), target.host.encode(), target.port),
            ssl_context=self._tls,
            network_backend=wire,
        )
        return _Connection(key, wire, http)

    def _keep(self, connection: _Connection) -> None:
        now = connection.idle_since = self._clock.monotonic()
        with self._lock:
            self._idle.append(connection)  # so the oldest are first
            expired = sum(now - each.idle_since >= _KEEP_SECONDS for each in self._idle)
            cut = max(expired, len(self._idle) - _KEEP)
            old, self._idle = self._idle[:cut], self._idle[cut:]
        for each in old:
            _end(each)

    def _finish(self, connection: _Connection, response: httpcore.Response) -> bool:
        """Read the rest of a short answer; tell whether its connection can be used again.

        The answer's status has decided by now, so whatever goes wrong here changes nothing.
        """
        soon = self._clock.monotonic() + _ANSWER_SECONDS
        connection.wire.deadline = min(connection.wire.deadline, soon)
        connection.wire.most = _ANSWER_BYTES
        try:
            for _ in response.iter_stream():
                pass
            response.close()
        except Exception:  # noqa: BLE001 - h11 raises errors of its own for odd bytes
            return False
        return connection.http.is_idle()


class Broken(Exception):
    """A request was written, in part or whole, and no answer came. ``__cause__`` says why."""


@contextmanager
def _told(wire: Wire) -> Iterator[None]:
    """Raise Broken for what went wrong after something was written."""
    try:
        yield
    except Exception as error:
        if wire.is_used:
            raise Broken from error
        raise


def _end(connection: _Connection) -> None:
    with suppress(Exception):  # it is gone in any case
        connection.http.close()
    if connection.wire.socket is not None:
        connection.wire.socket.close()


class _Tls(ssl.SSLContext):
    """A context whose ALPN is set once.

    httpcore sets it with each connection, which frees what a handshake in another thread reads.
    """

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        """Leave it as it is."""


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return what verifies servers: by ``ca_file`` alone, else by the authorities known here.

    Those are the system's and certifi's. Raises OSError.
    """
    context = _Tls(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if ca_file is None:
        context.load_default_certs()
        context.load_verify_locations(certifi.where())
    else:
        context.load_verify_locations(ca_file)
    ssl.SSLContext.set_alpn_protocols(context, ["http/1.1"])
    return context
