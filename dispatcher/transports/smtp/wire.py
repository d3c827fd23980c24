"""smtplib's protocol on a socket that keeps a deadline."""

from __future__ import annotations

import re
import smtplib
import socket
import ssl
from typing import Any, NamedTuple

from dispatcher.times.clock import Clock

_LONGEST_REPLY = 64 * 1024
_CHUNK = 64 * 1024
_LAST_CODES = (299, 399, 499)
"""Of good replies, of those that ask for more, and of temporary refusals."""


class Broke(Exception):
    """The connection broke, fell silent or made no sense."""


LINE_ERRORS = (Broke, OSError, smtplib.SMTPException)
"""What a wire raises when its connection fails."""


class Deadline:
    """The end of one send, by a monotonic clock. ``seconds`` is its whole length."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self.seconds = seconds
        self._clock = clock
        self._ends_at = clock.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left. Raises TimeoutError when none are."""
        left = self._ends_at - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def why(self, error: BaseException) -> str:
        """Say in a few words what became of a connection."""
        if isinstance(error, TimeoutError) and error.errno is None:
            return f"it did not answer within {self.seconds:g} s"
        if isinstance(error, ssl.SSLError):
            return f"TLS broke ({getattr(error, 'reason', None) or type(error).__name__})"
        if isinstance(error, OSError) and error.strerror:
            return error.strerror
        return str(error) if isinstance(error, Broke) else type(error).__name__


class Reply(NamedTuple):
    """What the server said, on one line."""

    code: int
    text: str

    @classmethod
    def of(cls, said: tuple[int, bytes | str]) -> Reply:
        """Read what smtplib returns."""
        code, text = said
        text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return cls(code, " ".join(text.split()))

    def __str__(self) -> str:
        return f"{self.code} {self.text}".rstrip()

    @property
    def is_good(self) -> bool:
        """Whether it is done (2xx)."""
        return self.code <= _LAST_CODES[0]

    @property
    def asks_for_more(self) -> bool:
        """Whether it is half done (3xx)."""
        return _LAST_CODES[0] < self.code <= _LAST_CODES[1]

    @property
    def is_permanent(self) -> bool:
        """Whether asking again is of no use (5xx)."""
        return self.code > _LAST_CODES[2]


class Wire(smtplib.SMTP):
    """Speaks on a socket that is connected: every byte by ``deadline``, however slowly they come.

    smtplib's own timeout is one for each read, and a server that says one byte a second never meets
    it. Raises LINE_ERRORS.
    """

    def __init__(self, sock: socket.socket, name: str, deadline: Deadline) -> None:
        super().__init__(local_hostname=name)
        self.sock = sock
        self.deadline = deadline
        self._unread = bytearray()

    def send(self, s: Any) -> None:
        """Write all of it."""
        left = memoryview(s.encode(self.command_encoding) if isinstance(s, str) else s)
        while left:
            left = left[self._socket.send(left[:_CHUNK]) :]

    def getreply(self) -> tuple[int, bytes]:
        """Read one reply, which may have several lines."""
        lines: list[bytes] = []
        size = 0
        while True:
            line = self._line()
            size += len(line)
            if size > _LONGEST_REPLY or not re.match(rb"[2-5]\d\d(?:[ -]|$)", line):
                raise Broke("it answered something that is not SMTP")
            lines.append(line[4:].strip())
            if line[3:4] != b"-":
                return int(line[:3]), b"\n".join(lines)

    def secure(self, context: ssl.SSLContext, host: str) -> None:
        """Begin TLS, and forget what was said before it."""
        if self._unread:  # somebody put it there before the encryption began
            raise Broke("it said something between STARTTLS and the encryption")
        self.sock = context.wrap_socket(self._socket, server_hostname=host)
        self.ehlo_resp = None
        self.esmtp_features = {}
        self.does_esmtp = False

    def _line(self) -> bytes:
        while b"\n" not in self._unread:
            if len(self._unread) > _LONGEST_REPLY:
                raise Broke("it answered something that is not SMTP")
            read = self._socket.recv(4096)
            if not read:
                raise Broke("it closed the connection")
            self._unread += read
        line, _, rest = bytes(self._unread).partition(b"\n")
        self._unread = bytearray(rest)
        return line.rstrip(b"\r")

    @property
    def _socket(self) -> socket.socket:
        """The socket, which waits until the deadline and no longer."""
        if self.sock is None:
            raise Broke("it closed the connection")
        self.sock.settimeout(self.deadline.left())
        return self.sock


def connected(host: str, port: int, deadline: Deadline) -> socket.socket:
    """Connect to the first address of ``host`` that answers. Raises OSError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    last = OSError("it has no address")
    for place, (family, kind, protocol, _, address) in enumerate(found):
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:  # a machine without IPv6, say
            last = error
            continue
        try:
            sock.settimeout(deadline.left() / (len(found) - place))
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError as error:
            sock.close()
            last = error
        else:
            return sock
    raise last
