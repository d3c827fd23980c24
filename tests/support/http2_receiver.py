"""A small HTTP/2 server on loopback, for what only HTTP/2 does."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import h2.config
import h2.connection
import h2.events
import h2.exceptions


class Http2Receiver:
    """Answers each request with 204; remembers headers by the number of their connection."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        tls.set_alpn_protocols(["h2", "http/1.1"])
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.received: list[tuple[int, dict[str, str]]] = []
        self.most_at_once = 0
        self.goes_away = False
        """Whether to end the connection with each request, saying that it was not looked at."""

    def serve(self) -> None:
        number = 0
        while True:
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return
            number += 1
            threading.Thread(target=self._speak, args=(accepted, number), daemon=True).start()

    def _speak(self, accepted: socket.socket, number: int) -> None:
        with (
            suppress(OSError, h2.exceptions.ProtocolError),
            self._tls.wrap_socket(accepted, server_side=True) as line,
        ):
            config = h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
            connection = h2.connection.H2Connection(config)
            connection.initiate_connection()
            line.sendall(connection.data_to_send())
            is_open: set[int] = set()
            while data := line.recv(65_536):
                for event in connection.receive_data(data):
                    if isinstance(event, h2.events.RequestReceived):
                        is_open.add(event.stream_id)
                        self.most_at_once = max(self.most_at_once, len(is_open))
                        headers = {str(k): str(v) for k, v in event.headers}
                        self.received.append((number, headers))
                    elif isinstance(event, h2.events.DataReceived):
                        connection.acknowledge_received_data(
                            event.flow_controlled_length, event.stream_id
                        )
                    elif isinstance(event, h2.events.StreamEnded):
                        is_open.discard(event.stream_id)
                        if self.goes_away:
                            connection.close_connection(last_stream_id=event.stream_id - 2)
                        else:
                            connection.send_headers(
                                event.stream_id, [(":status", "204")], end_stream=True
                            )
                line.sendall(connection.data_to_send())

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def receiving_http2(tls: ssl.SSLContext) -> Iterator[Http2Receiver]:
    receiver = Http2Receiver(tls)
    thread = threading.Thread(target=receiver.serve, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.close()
        thread.join()
