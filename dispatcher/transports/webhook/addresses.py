"""Which addresses a webhook may reach.

The networks are those of the IANA registries of special-purpose addresses (RFC 6890), written out:
what the standard library calls global differs between its versions and misses some of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

from dispatcher.errors import InvalidSettings, kind_of, quoted

_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
_LONGEST_NAME = 253
_IN_A_NUMBER = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)")

_REFUSED_V4 = tuple(
    IPv4Network(each)
    for each in (
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
    IPv6Network(each)
    for each in (
        "2001::/23",  # protocol assignments: Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: names an IPv4 address that somebody else would reach
        "3fff::/20",  # documentation
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")  # how hosts without IPv4 reach it


class Addresses:
    """Judges addresses: public ones may be reached, and those of ``allow``.

    ``allow`` holds networks and addresses (``10.1.0.0/16``, ``fd00::7``) and names
    (``hooks.internal``), whose addresses are taken whatever they are. Raises InvalidSettings.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._networks: list[IPv4Network | IPv6Network] = []
        self._names: set[str] = set()
        accepted = "a list of networks, addresses and names, such as 10.1.0.0/16, hooks.internal"
        if not isinstance(allow, list | tuple | set | frozenset):
            raise InvalidSettings("allow", kind_of(allow), accepted)
        for each in allow:
            text = each.lower() if isinstance(each, str) and each.isascii() else ""
            if is_name(text):
                self._names.add(text)
                continue
            try:
                self._networks.append(ip_network(text))
            except ValueError:
                problem = f"{quoted(each)} is no network, address or name"
                raise InvalidSettings("allow", problem, accepted) from None

    def allow_name(self, name: str) -> bool:
        """Whether ``name``, in lower case, may have any address."""
        return name in self._names

    def allow(self, text: str) -> bool:
        """Whether the address ``text`` may be reached. One that cannot be read may not."""
        try:
            address = ip_address(text)
        except ValueError:
            return False
        inner = _embedded(address)
        if any(each in network for network in self._networks for each in (address, inner)):
            return True
        if isinstance(inner, IPv4Address):
            return not any(inner in network for network in _REFUSED_V4)
        return inner in _TAKEN_V6 and not any(inner in network for network in _REFUSED_V6)


def _embedded(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """Return the IPv4 address that packets to ``address`` end at, where there is one."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address


def is_name(text: str) -> bool:
    """Whether ``text``, in lower case, is the name of a host and no way to write an address.

    ``127.1``, ``2130706433`` and ``0x7f.1`` are addresses to a resolver: what ends in a number is.
    """
    short = len(text) <= _LONGEST_NAME
    return short and bool(_NAME.fullmatch(text)) and not _IN_A_NUMBER.fullmatch(text)
