"""A connection to the host of a webhook: to judged addresses only, and never past its deadline."""

from __future__ import annotations

import re
import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import certifi
import httpcore

from dispatcher.errors import (
    DeliveryError,
    InvalidSettings,
    PerhapsSent,
    PermanentFailure,
    TemporaryFailure,
    kind_of,
)
from dispatcher.transports.connections import Deadline, connect, quiet
from dispatcher.transports.webhook_urls import Addresses, Target

_HEAD_BYTES = 64 * 1024
"""How much may come before an answer's body."""
_ANSWER_BYTES = 16 * 1024
"""How much of an answer's body is read, so that its connection can be used again."""
_ANSWER_SECONDS = 0.5
_READ = 4_096
"""Bytes read at once: what is made of them takes little time, and then the deadline is looked at.

An answer in chunks of one byte would keep its reader busy for seconds with what it has read ahead.
"""
_FOR_ANOTHER = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_STATUS = re.compile(
    rb"(?:HTTP/1\.[01] 1\d\d[^\n]*+\n(?:(?!\r?\n)[^\n]*+\n)*+\r?\n)*+"
    rb"HTTP/1\.[01] ([2-9]\d\d)[ \r\n]"
)
"""The status of an answer, behind informational ones."""
Resolve = Callable[[str, int], list[str]]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A status and headers, with names in lower case; none where it is not whole."""

    status: int
    headers: Mapping[str, str]
    is_whole: bool = True


class WebhookConnection(httpcore.NetworkBackend):
    """Posts to one host, one request at a time.

    Requests that share a connection would share its end, and leave as many messages with an unknown
    outcome as were under way. The name is resolved once, every address it has is judged, and the
    connection goes to one of those: there is no second look that could find something else.
    """

    def __init__(
        self, target: Target, addresses: Addresses, tls: ssl.SSLContext, resolve: Resolve
    ) -> None:
        self._addresses = addresses
        self._resolve = resolve
        self._http = httpcore.HTTPConnection(
            httpcore.Origin(target.scheme.encode(), target.host.encode(), target.port),
            ssl_context=tls,
            network_backend=self,
        )
        self.deadline: Deadline
        self.socket: socket.socket | None = None
        self.is_used = False
        """Whether anything of the request was written."""
        self.most = 0
        """How many bytes may still be read."""
        self.head: bytearray | None = None
        """What was read of the answer, until its headers have been."""

    def post(
        self, target: Target, headers: Mapping[str, str], content: bytes, deadline: Deadline
    ) -> HttpAnswer:
        """Post ``content`` and return the answer, both until ``deadline``.

        Once the line with its status has come, that status is the answer, whatever is wrong with
        the rest. Raises PermanentFailure, TemporaryFailure, and PerhapsSent where something was
        written and no status came. None names the URL or is chained.
        """
        self.deadline = deadline
        self.is_used = False
        self.most = _HEAD_BYTES
        self.head = bytearray()
        url = httpcore.URL(
            scheme=target.scheme, host=target.host, port=target.port, target=target.path
        )
        request = httpcore.Request(
            "POST", url, headers=[("Host", target.authority), *headers.items()], content=content
        )
        try:
            with quiet():
                response = self._http.handle_request(request)
        except DeliveryError:
            raise
        except Exception as error:  # noqa: BLE001 - httpcore and h11 may raise anything
            if not self.is_used:
                kind = type(error).__name__
                raise TemporaryFailure(f"the request was not sent: {kind}") from None
            if (status := _STATUS.match(self.head)) is not None:
                return HttpAnswer(int(status[1]), {}, is_whole=False)
            if isinstance(error, TimeoutError):
                raise PerhapsSent("no answer came in time") from None
            raise PerhapsSent("the connection broke before an answer") from None
        self.head = None
        self._read_rest(response)
        named = {name.decode("latin-1").lower(): value for name, value in response.headers}
        return HttpAnswer(
            response.status, {name: value.decode("latin-1") for name, value in named.items()}
        )

    def _read_rest(self, response: httpcore.Response) -> None:
        """Read a short answer's rest for the next request's sake: the status has decided by now."""
        self.most = _ANSWER_BYTES
        with suppress(Exception), quiet():  # h11 raises errors of its own for odd bytes
            seconds = min(_ANSWER_SECONDS, self.deadline.left())
            self.deadline = Deadline(self.deadline.clock, seconds)
            for _ in response.iter_stream():
                pass
            response.close()

    def can_follow(self) -> bool:
        """Whether another request can follow: the other side has said and ended nothing since."""
        is_open = not self._http.is_closed()  # it is idle also when it never came up
        return is_open and self._http.is_idle() and not self.is_readable()

    def is_readable(self) -> bool:
        """Whether the server has sent something unasked, or closed the connection."""
        if self.socket is None or self.socket.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def end(self) -> None:
        """Close it, whatever its state."""
        with suppress(Exception), quiet():
            self._http.close()
        if self.socket is not None:
            self.socket.close()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to a judged address of ``host``. Raises what :meth:`post` does."""
        del timeout, local_address, socket_options
        addresses = self._found(host, port)
        if not self._addresses.allow_name(host) and not all(map(self._addresses.allow, addresses)):
            raise PermanentFailure("the host has an address that may not be reached")
        try:
            self.socket = connect(addresses, port, self.deadline)
        except OSError as error:
            raise TemporaryFailure(_why(error)) from None
        return _Stream(self.socket, self)

    def _found(self, host: str, port: int) -> list[str]:
        """Resolve in a thread of its own: the system's resolver has no deadline."""
        answers: list[list[str]] = []

        def ask() -> None:
            with suppress(OSError, UnicodeError):  # the latter for a label that no name can have
                answers.append(self._resolve(host, port))

        thread = threading.Thread(target=ask, name="dispatcher-resolver", daemon=True)
        thread.start()
        with suppress(TimeoutError):
            thread.join(self.deadline.left())
        if not answers or not answers[0]:
            raise TemporaryFailure("the host cannot be resolved")
        return answers[0]


class _Stream(httpcore.NetworkStream):
    """A socket whose every operation ends at the deadline of its connection."""

    def __init__(self, sock: socket.socket, connection: WebhookConnection) -> None:
        self._socket = sock
        self._connection = connection

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        del timeout
        self._socket.settimeout(self._connection.deadline.left())
        if self._connection.most <= 0:
            raise OSError("the answer is too long")
        read = self._socket.recv(min(max_bytes, _READ))
        self._connection.most -= len(read)
        if self._connection.head is not None:
            self._connection.head += read
        return read

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write all of it. After a WriteError httpcore looks for an answer nevertheless."""
        del timeout
        rest = memoryview(buffer)
        while rest:
            self._socket.settimeout(self._connection.deadline.left())
            self._connection.is_used = True
            try:
                rest = rest[self._socket.send(rest) :]
            except TimeoutError:
                raise
            except OSError as error:
                raise httpcore.WriteError from error

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        del timeout
        try:
            self._socket.settimeout(self._connection.deadline.left())
            wrapped = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
        except (OSError, ValueError) as error:  # a ValueError for a name that it cannot check
            raise TemporaryFailure(_why(error)) from None
        self._connection.socket = wrapped
        return _Stream(wrapped, self._connection)

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object" and isinstance(self._socket, ssl.SSLSocket):
            return self._socket
        return None

    def close(self) -> None:
        self._socket.close()


def _why(error: Exception) -> str:
    """Say why there is no connection."""
    if isinstance(error, TimeoutError):
        return "no connection in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        for_another = error.verify_code in _FOR_ANOTHER  # OpenSSL's text names the host
        what = "it is for another name" if for_another else error.verify_message
        return f"the certificate cannot be verified: {what}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with the server: {error.reason}"
    if isinstance(error, ConnectionRefusedError):
        return "the connection is refused"
    return "the host cannot be reached"


class _Tls(ssl.SSLContext):
    """A context whose ALPN is set once.

    httpcore sets it with each connection, which frees what a handshake in another thread reads.
    """

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        """Leave it as it is."""


def tls_context(ca_file: object) -> ssl.SSLContext:
    """Return what verifies by ``ca_file``, else as the system and certifi do: InvalidSettings."""
    if ca_file is not None and not isinstance(ca_file, str):
        raise InvalidSettings("ca_file", kind_of(ca_file), "the path of a PEM file")
    context = _Tls(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if ca_file is None:
            context.load_default_certs()
            context.load_verify_locations(certifi.where())
        else:
            context.load_verify_locations(ca_file)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidSettings("ca_file", str(error), "a readable PEM file") from None
    ssl.SSLContext.set_alpn_protocols(context, ["http/1.1"])
    return context
