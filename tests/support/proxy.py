"""A TCP proxy that breaks the line on purpose.

One thread moves all bytes. The proxy listens on a free loopback port and forwards to a unix
socket, or to a host and port.
"""

from __future__ import annotations

import selectors
import socket
import struct
import threading
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Self

from tests.support.mariadb import MariaDBServer
from tests.support.servers import PostgresServer

_CHUNK = 65_536


class _Mode(Enum):
    PASS = auto()
    REFUSE = auto()
    BLACKHOLE = auto()


@dataclass(slots=True, eq=False)
class _Line:
    client: socket.socket
    server: socket.socket
    armed: bool = False
    tail: bytes = b""


@dataclass(slots=True)
class _Drop:
    pattern: bytes
    skip: int
    times: int
    then_refuse: bool
    in_answer: bool = False
    dropped: int = field(default=0)


class Proxy:
    """Stands between a client and a server; pass, refuse, swallow, slow, or lose chosen replies."""

    def __init__(self, upstream: Path | tuple[str, int]) -> None:
        self._upstream = upstream
        self._lock = threading.RLock()
        self._mode = _Mode.PASS
        self._drop: _Drop | None = None
        self._delay = 0.0
        self._lines: set[_Line] = set()
        self._selector = selectors.DefaultSelector()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        """How many connections were made so far."""
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def dropped(self) -> int:
        """How many replies the present ``drop_reply`` has lost."""
        with self._lock:
            return self._drop.dropped if self._drop else 0

    def pass_all(self) -> None:
        with self._lock:
            self._mode, self._drop, self._delay = _Mode.PASS, None, 0.0
        self._wake()

    def refuse(self) -> None:
        """Reset every new connection; those that exist go on."""
        with self._lock:
            self._mode = _Mode.REFUSE
        self._wake()

    def blackhole(self) -> None:
        """Accept and answer nothing, on new and existing connections, until ``pass_all``."""
        with self._lock:
            self._mode = _Mode.BLACKHOLE
        self._wake()

    def slow(self, seconds: float) -> None:
        """Let everything pass, each piece that late, one after the other."""
        with self._lock:
            self._mode, self._delay = _Mode.PASS, seconds
        self._wake()

    def lose_answer(self, pattern: bytes) -> None:
        """Cut the line where the next answer that contains ``pattern`` itself would pass."""
        with self._lock:
            self._drop = _Drop(pattern, 0, 1, then_refuse=False, in_answer=True)

    def drop_reply(
        self, pattern: bytes, *, nth: int = 1, times: int = 1, then_refuse: bool = False
    ) -> None:
        """Lose the reply to the ``nth`` command that contains ``pattern``, and ``times - 1`` more.

        The server gets and executes the command; where its answer would pass, the line is cut.
        With ``then_refuse`` the server cannot be reached after that.
        """
        with self._lock:
            self._drop = _Drop(pattern, nth - 1, times, then_refuse)

    def cut_all(self) -> None:
        with self._lock:
            for line in list(self._lines):
                self._cut(line)

    def close(self) -> None:
        with self._lock:
            self._closing = True
        self._wake()
        self._thread.join(60)
        self.cut_all()
        for end in (self._listener, self._wake_in, self._wake_out):
            end.close()
        self._selector.close()

    def _wake(self) -> None:
        self._wake_in.send(b"x")

    def _run(self) -> None:
        while True:
            ready = self._selector.select()
            with self._lock:
                if self._closing:
                    return
                swallowing = self._mode is _Mode.BLACKHOLE
                delay = self._delay
            if swallowing:
                self._wake_out.recv(_CHUNK)  # nothing moves until the mode changes
                continue
            if delay:
                threading.Event().wait(delay)
            for key, _ in ready:
                with self._lock:
                    self._handle(key)

    def _handle(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._wake_out:
            self._wake_out.recv(_CHUNK)
        elif key.fileobj is self._listener:
            self._accept()
        elif key.data in self._lines:
            self._forward(key.data, from_client=key.fileobj is key.data.client)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        self.accepted += 1
        if self._mode is _Mode.REFUSE:
            _reset(client)
            return
        try:
            server = _connected(self._upstream)
        except OSError:
            _reset(client)
            return
        line = _Line(client, server)
        self._lines.add(line)
        self._selector.register(client, selectors.EVENT_READ, line)
        self._selector.register(server, selectors.EVENT_READ, line)

    def _forward(self, line: _Line, *, from_client: bool) -> None:
        source, target = (line.client, line.server) if from_client else (line.server, line.client)
        try:
            data = source.recv(_CHUNK)
            if not data or (not from_client and self._loses_reply(line, data)):
                self._cut(line)
                return
            if from_client:
                self._look_for_pattern(line, data)
            target.sendall(data)
        except OSError:
            self._cut(line)

    def _look_for_pattern(self, line: _Line, data: bytes) -> None:
        drop = self._drop
        if drop is None or drop.in_answer or drop.dropped >= drop.times:
            return
        seen = line.tail + data
        if drop.pattern in seen:
            line.tail = b""
            if drop.skip > 0:
                drop.skip -= 1
            else:
                line.armed = True
        else:
            line.tail = seen[-len(drop.pattern) + 1 :] if len(drop.pattern) > 1 else b""

    def _loses_reply(self, line: _Line, answer: bytes) -> bool:
        drop = self._drop
        if drop is None:
            return False
        if drop.in_answer:
            line.armed = drop.pattern in answer
        if not line.armed:
            return False
        line.armed = False
        if drop.dropped >= drop.times:
            return False
        drop.dropped += 1
        if drop.then_refuse:
            self._mode = _Mode.REFUSE
        return True

    def _cut(self, line: _Line) -> None:
        if line not in self._lines:
            return
        self._lines.remove(line)
        for side in (line.client, line.server):
            self._selector.unregister(side)
        _reset(line.client)
        line.server.close()


def _connected(upstream: Path | tuple[str, int]) -> socket.socket:
    if not isinstance(upstream, Path):
        return socket.create_connection(upstream)
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(str(upstream))
    except OSError:
        server.close()
        raise
    return server


def _reset(connection: socket.socket) -> None:
    """Close with a reset, so that the other side notices at once."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@dataclass(frozen=True)
class FarDatabase:
    server: PostgresServer | MariaDBServer
    name: str
    proxy: Proxy

    @property
    def direct(self) -> str:
        return self.server.url(self.name)

    @property
    def through(self) -> str:
        return self.server.url(self.name, port=self.proxy.port)

    def end_connections(self) -> None:
        self.server.end_connections(self.name)
