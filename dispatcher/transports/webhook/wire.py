"""One connection's way to the network: to checked addresses only, and never past its deadline."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import httpcore

from dispatcher.times.clock import Clock
from dispatcher.transports.webhook.addresses import Addresses

_READ = 4_096
"""Bytes read at once: what is made of them takes little time, and then the deadline is looked at.

An answer in chunks of one byte would keep its reader busy for seconds with what it has read ahead.
"""
Resolve = Callable[[str, int], list[str]]


class Forbidden(Exception):
    """The name has an address that may not be reached."""


class Unresolved(Exception):
    """The name has no address, or none was found in time."""


def resolve(host: str, port: int) -> list[str]:
    """Return the addresses of ``host``, best first. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(each[4][0]) for each in found))


class Wire(httpcore.NetworkBackend):
    """Opens one connection and bounds all that is done on it by ``deadline`` (monotonic).

    The name is resolved once, every address it has is judged, and the connection goes to one of
    those: there is no second look that could find something else. ``is_used`` tells whether
    anything was written since it was last set to False. ``most`` is how many bytes may still be
    read; a read beyond them is an httpcore.ReadError.
    """

    def __init__(self, addresses: Addresses, clock: Clock, resolver: Resolve = resolve) -> None:
        self._addresses = addresses
        self._clock = clock
        self._resolve = resolver
        self.deadline = 0.0
        self.is_used = False
        self.most = 0
        self.socket: socket.socket | None = None

    def left(self) -> float:
        """Return the seconds until the deadline. Raises TimeoutError when it is over."""
        seconds = self.deadline - self._clock.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to a checked address of ``host``. Raises Forbidden, Unresolved, ConnectError."""
        del timeout, local_address, socket_options
        addresses = self._checked(host, port)
        with _mapped(httpcore.ConnectTimeout, httpcore.ConnectError):
            self.socket = self._first(addresses, port)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return _Stream(self.socket, self)

    def _checked(self, host: str, port: int) -> list[str]:
        found = self._found(host, port)
        if not self._addresses.allow_name(host):
            for each in found:
                if not self._addresses.allow(each):
                    raise Forbidden
        return found

    def _found(self, host: str, port: int) -> list[str]:
        """Ask in a thread of its own: the system's resolver has no deadline."""
        answers: list[list[str]] = []

        def ask() -> None:
            try:
                answers.append(self._resolve(host, port))
            except (OSError, UnicodeError):  # the latter for a label that no name can have
                answers.append([])

        thread = threading.Thread(target=ask, name="dispatcher-resolver", daemon=True)
        thread.start()
        try:
            thread.join(self.left())
        except TimeoutError:
            raise Unresolved from None
        if not answers or not answers[0]:
            raise Unresolved
        return answers[0]

    def _first(self, addresses: list[str], port: int) -> socket.socket:
        """Connect to the first address that answers; each may take its share of what is left."""
        for number, address in enumerate(addresses):
            try:
                share = self.left() / (len(addresses) - number)
                return socket.create_connection((address, port), timeout=share)
            except OSError:
                if number == len(addresses) - 1:
                    raise
        raise Unresolved

    def is_readable(self) -> bool:
        """Whether the other side has said or ended something that nobody asked for."""
        if self.socket is None or self.socket.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))


class _Stream(httpcore.NetworkStream):
    """A socket whose every operation ends at the deadline of its wire."""

    def __init__(self, sock: socket.socket, wire: Wire) -> None:
        self._socket = sock
        self._wire = wire

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        del timeout
        with _mapped(httpcore.ReadTimeout, httpcore.ReadError):
            self._socket.settimeout(self._wire.left())
            if self._wire.most <= 0:
                raise OSError("the answer is too long")
            read = self._socket.recv(min(max_bytes, _READ))
            self._wire.most -= len(read)
            return read

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        del timeout
        rest = memoryview(buffer)
        with _mapped(httpcore.WriteTimeout, httpcore.WriteError):
            while rest:
                self._socket.settimeout(self._wire.left())
                self._wire.is_used = True
                rest = rest[self._socket.send(rest) :]

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        del timeout
        try:
            with _mapped(httpcore.ConnectTimeout, httpcore.ConnectError):
                self._socket.settimeout(self._wire.left())
                wrapped = ssl_context.wrap_socket(self._socket, server_hostname=server_hostname)
        except BaseException:
            self.close()
            raise
        self._wire.socket = wrapped
        return _Stream(wrapped, self._wire)

    def get_extra_info(self, info: str) -> Any:
        if info == "ssl_object" and isinstance(self._socket, ssl.SSLSocket):
            return self._socket
        if info == "is_readable":
            return self._wire.is_readable()
        return None

    def close(self) -> None:
        self._socket.close()


@contextmanager
def _mapped(timeout: type[Exception], other: type[Exception]) -> Iterator[None]:
    """Turn errors of the socket into those that httpcore knows."""
    try:
        yield
    except TimeoutError as error:
        raise timeout from error
    except (OSError, ValueError) as error:  # a ValueError of TLS: a name that it cannot check
        raise other(*cast(tuple[object, ...], error.args)) from error
