"""Which URLs a webhook may have, and which addresses it may reach.

The networks are those of the IANA registries of special-purpose addresses (RFC 6890), written out:
what the standard library calls global differs between its versions and misses some of them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from urllib.parse import urlsplit

from dispatcher.errors import InvalidSettings, InvalidValue, quoted
from dispatcher.transports.connections import address_of, is_name

Origin = tuple[str, str, int]
"""A scheme, a host and a port: requests to the same can use one connection."""
_OR_ALLOWED = ", or one that options.allow names"
LAST_PORT = 65_535
PORTS = {"https": 443, "http": 80}
_URL = re.compile(r"[!#-;=?-\[\]_a-z~]+")  # printable ASCII without "<>\^`{|}
_HOST_AND_PORT = re.compile(r"(?P<host>\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")

_REFUSED_V4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network; 0.0.0.0 reaches this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by carriers (CGNAT), and Alibaba's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's virtual host: a public address that only machines there see
        "169.254.0.0/16",  # link-local, and the metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments, and Oracle's metadata
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_TAKEN_V6 = IPv6Network("2000::/3")  # all that is given out so far
_REFUSED_V6 = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: names an IPv4 address that a relay would reach
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")  # how hosts without IPv4 reach it
_LOOPBACK: tuple[IPv4Network | IPv6Network, ...] = (
    IPv4Network("127.0.0.0/8"),
    IPv6Network("::1/128"),
)


class Addresses:
    """Judges addresses: public ones may be reached, and those of ``allow``.

    ``allow`` holds networks and addresses (``10.1.0.0/16``, ``fd00::7``) and names
    (``hooks.internal``), whose addresses are taken whatever they are. Raises ValueError.
    """

    def __init__(self, allow: Collection[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        self._names: set[str] = set()
        for place in allow:
            text = place.lower() if place.isascii() else ""
            if is_name(text):
                self._names.add(text)
                continue
            try:
                self._networks.append(ip_network(text))
            except ValueError:
                problem = f"{quoted(place)} is no network, address or name"
                accepted = "such as 10.1.0.0/16, hooks.internal"
                raise InvalidSettings("allow", problem, accepted) from None

    def allow_name(self, name: str) -> bool:
        return name in self._names

    def allow_local(self, name: str) -> bool:
        """Whether a URL may have ``name``, which is ``localhost`` or ends in it."""
        return self.allow_name(name)

    def allow(self, text: str) -> bool:
        """Whether the address ``text`` may be reached. One that cannot be read may not."""
        address = address_of(text)
        if address is None:
            return False
        inner = _embedded(address)
        if any(address in network or inner in network for network in self._networks):
            return True
        if isinstance(inner, IPv4Address):
            return not any(inner in network for network in _REFUSED_V4)
        return inner in _TAKEN_V6 and not any(inner in network for network in _REFUSED_V6)


class LoopbackAddresses(Addresses):
    """Judges the addresses of a URL that names this machine: loopback, and nothing else."""

    def allow_local(self, name: str) -> bool:
        """Whether ``name`` is ``localhost``. The addresses that it has are judged as others."""
        return name == "localhost"

    def allow(self, text: str) -> bool:
        address = address_of(text)
        return address is not None and any(address in network for network in _LOOPBACK)

    def names(self, host: str) -> bool:
        """Whether ``host``, as a URL has it, is this machine without a look at any name server."""
        return self.allow_local(host) or self.allow(host)


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that packets to ``address`` end at, where there is one."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


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
    def origin(self) -> Origin:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"


class Reader:
    """Reads URLs by the rules of a channel.

    ``http`` allows URLs without TLS, ``ports`` are those allowed beside the scheme's own,
    ``any_port`` allows all. Raises ValueError.
    """

    def __init__(
        self,
        addresses: Addresses,
        *,
        http: bool = False,
        ports: Collection[int] = (),
        any_port: bool = False,
    ) -> None:
        self._addresses = addresses
        self._schemes = ("https", "http") if http else ("https",)
        self._ports = ports
        self._any_port = any_port

    def read(self, url: str) -> Target:
        """Return the target of ``url``. Nothing is resolved.

        Raises InvalidValue, which names no part of the URL, because any may be a secret: for a
        scheme or port that is not allowed, a user or a fragment, an address that may not be
        reached, and whatever two readers could understand in two ways.
        """
        if not url.isascii() or not _URL.fullmatch(url.lower()):  # U+212A in lower case is a k
            raise _invalid("it has characters that no URL has", "a URL, percent-encoded")
        try:
            parts = urlsplit(url)
        except ValueError:
            raise _invalid("it is no URL", "https://host/path") from None
        schemes = " or ".join(f"{scheme}://" for scheme in self._schemes)
        if parts.scheme not in self._schemes:
            clear = "" if "http" in self._schemes else ", or http:// with options.http = true"
            raise _invalid("its scheme is not allowed", f"{schemes}{clear}")
        if "@" in parts.netloc:
            raise _invalid("it has a user", "a URL without user and password")
        if "#" in url:
            raise _invalid("it has a fragment, which is never sent", "a URL without #")
        place = _HOST_AND_PORT.fullmatch(parts.netloc.lower())
        if place is None:
            raise _invalid("it has no readable host", f"{schemes} and a host")
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        port = self._port(parts.scheme, place["port"])
        return Target(parts.scheme, self._host(place["host"]), port, path)

    def _port(self, scheme: str, text: str | None) -> int:
        port = PORTS[scheme] if text is None else int(text)
        if not 1 <= port <= LAST_PORT:
            raise _invalid("there is no such port", f"1 to {LAST_PORT}")
        if not self._any_port and port not in (PORTS[scheme], *self._ports):
            names = ", ".join(map(str, sorted({PORTS[scheme], *self._ports})))
            raise _invalid("its port is not allowed", f"port {names}, or one of options.ports")
        return port

    def _host(self, text: str) -> str:
        host = text.strip("[]").removesuffix(".")
        if not is_name(host):
            address = address_of(host)
            if address is None:
                raise _invalid("its host is neither a name nor an address", "a name or address")
            if isinstance(address, IPv6Address) != text.startswith("["):
                raise _invalid("its host has the wrong brackets", "IPv6 in [ ], IPv4 without")
            if not self._addresses.allow(host):
                raise _invalid("its address may not be reached", f"a public address{_OR_ALLOWED}")
            return str(address)
        local = host == "localhost" or host.endswith(".localhost")
        if local and not self._addresses.allow_local(host):
            raise _invalid("it names this machine", f"a public host{_OR_ALLOWED}")
        return host


def _invalid(problem: str, accepted: str) -> InvalidValue:
    return InvalidValue("url", problem, accepted)
