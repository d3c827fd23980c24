"""A real HTTP server on loopback that answers as a test tells it, and remembers what came."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Connection = tuple[str, int]


@dataclass
class Received:
    """One request; header names in lower case. ``connection`` is the client's end of its line."""

    path: str
    headers: dict[str, str]
    content: bytes
    connection: Connection


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Receiver
    received: Received
    timeout = 20

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        content = self.rfile.read(length)
        if len(content) < length:  # who sent it was killed in its midst
            self.close_connection = True
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.received = Received(self.path, headers, content, self.client_address)
        with self.server.lock:
            self.server.received.append(self.received)
        self.server.answer(self)

    def reply(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def wait_for_its_end(self) -> None:
        """Say nothing more until the client has gone."""
        self.close_connection = True
        self.connection.settimeout(20)
        self.connection.recv(1)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
        """Write nothing on standard error."""


class Receiver(ThreadingHTTPServer):
    """``answer`` is called with the handler of each request that was read."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self._tls = tls
        self.received: list[Received] = []
        self.lock = threading.Lock()
        self.answer: Callable[[Handler], None] = lambda handler: handler.reply(204)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/hook"

    def answers(
        self, status: int, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> None:
        self.answer = lambda handler: handler.reply(status, headers, body)

    def finish_request(self, request: socket.socket, client_address: Connection) -> None:  # type: ignore[override] # typeshed allows datagrams
        if self._tls:
            request.settimeout(20)
            request = self._tls.wrap_socket(request, server_side=True)
        Handler(request, client_address, self)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away is what tests are about."""


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    with Receiver(tls) as receiver:
        thread = threading.Thread(target=receiver.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()
