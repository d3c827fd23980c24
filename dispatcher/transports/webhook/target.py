"""Reading the URL that a webhook goes to."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from dispatcher.errors import InvalidValue
from dispatcher.transports.webhook.addresses import Addresses, is_name

_OR_ALLOWED = ", or one that options.allow names"
LAST_PORT = 65_535
PORTS = {"https": 443, "http": 80}
_URL = re.compile(r"[!#-;=?-\[\]_a-z~]+")  # printable ASCII without "<>\^`{|}
_HOST_AND_PORT = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes. ``host`` is a name or an address without brackets, in lower case.

    ``path`` has the query with it. It may be a secret, so no repr shows it.
    """

    scheme: str
    host: str
    port: int
    path: str = field(repr=False)

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


class Reader:
    """Reads URLs by the rules of a channel.

    ``http`` allows URLs without TLS, ``ports`` are those allowed beside the scheme's own (None:
    any).
    """

    def __init__(
        self, addresses: Addresses, *, http: bool = False, ports: Collection[int] | None = ()
    ) -> None:
        self._addresses = addresses
        self._schemes = ("https", "http") if http else ("https",)
        self._ports = ports

    def read(self, url: str) -> Target:
        """Return the target of ``url``. Nothing is resolved.

        Raises InvalidValue, which names no part of the URL, because any may be a secret: for a
        scheme or port that is not allowed, a user or a fragment, an address that may not be
        reached, and whatever two readers could understand in two ways.
        """
        if not url.isascii() or not _URL.fullmatch(url.lower()):  # U+212A in lower case is a k
            raise _invalid("it has characters that a URL has not", "a URL, percent-encoded")
        try:
            parts = urlsplit(url)
        except ValueError:
            raise _invalid("it is no URL", "https://host/path") from None
        schemes = " or ".join(f"{each}://" for each in self._schemes)
        if parts.scheme not in self._schemes:
            clear = "" if "http" in self._schemes else ", or http:// with options.http = true"
            raise _invalid("it has another scheme", f"{schemes}{clear}")
        if "@" in parts.netloc:
            raise _invalid("it has a user", "a URL without user and password")
        if "#" in url:
            raise _invalid("it has a fragment, which is never sent", "a URL without #")
        found = _HOST_AND_PORT.fullmatch(parts.netloc.lower())
        if not found:
            raise _invalid("it has no readable host", f"{schemes} and a host")
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        port = self._port(parts.scheme, found["port"])
        return Target(parts.scheme, self._host(found["host"]), port, path)

    def _port(self, scheme: str, text: str | None) -> int:
        port = PORTS[scheme] if text is None else int(text)
        if not 1 <= port <= LAST_PORT:
            raise _invalid("there is no such port", f"1 to {LAST_PORT}")
        if self._ports is not None and port != PORTS[scheme] and port not in self._ports:
            names = ", ".join(str(each) for each in sorted({PORTS[scheme], *self._ports}))
            raise _invalid("its port is not allowed", f"port {names}, or one of options.ports")
        return port

    def _host(self, text: str) -> str:
        host = text.strip("[]").removesuffix(".")
        if not is_name(host):
            try:
                address = ip_address(host)
            except ValueError:
                raise _invalid("its host is neither a name nor an address", "one") from None
            if isinstance(address, IPv6Address) != text.startswith("["):
                raise _invalid("its host is no address", "an IPv6 address in [ ]")
            if not self._addresses.allow(host):
                raise _invalid("its address may not be reached", f"a public address{_OR_ALLOWED}")
            return str(address)
        local = host == "localhost" or host.endswith(".localhost")
        if local and not self._addresses.allow_name(host):
            raise _invalid("it names this machine", f"a public host{_OR_ALLOWED}")
        return host


def _invalid(problem: str, accepted: str) -> InvalidValue:
    return InvalidValue("url", problem, accepted)
