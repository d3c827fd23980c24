"""Where the mail server is and how it is spoken to, read from a channel's options."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import SplitResult, unquote, urlsplit

from dispatcher.errors import InvalidSettings, kind_of

Security = Literal["tls", "starttls", "none"]

_SCHEMES: dict[str, tuple[Security, int]] = {
    "smtps": ("tls", 465),
    "smtp+starttls": ("starttls", 587),
    "smtp": ("none", 25),
}
_URLS = "smtps://user:password@host, smtp+starttls://user:password@host, or smtp://localhost"
_HOST = re.compile(r"(?!.{254})[a-z0-9_][a-z0-9_-]{0,62}(?:\.[a-z0-9_][a-z0-9_-]{0,62})*\.?")
_IPV6 = 6
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,253}[A-Za-z0-9])?|\[[0-9A-Za-z.:]+\]")


@dataclass(frozen=True, slots=True)
class Server:
    """A mail server. ``name`` is how we call ourselves there."""

    host: str
    port: int
    security: Security
    name: str
    context: ssl.SSLContext | None = field(repr=False)
    user: str = field(default="", repr=False)
    password: str = field(default="", repr=False)

    def __str__(self) -> str:
        """Show no credentials."""
        return f"{self.host}:{self.port}"


def read_server(
    url: object, *, name: object, ca_file: str | Path | None, plaintext: object
) -> Server:
    """Return what these options say. Raises InvalidSettings, which never quotes the address."""
    parts, port = _split(url)
    security, usual_port = _SCHEMES[parts.scheme]
    host = parts.hostname or ""
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    if bool(user) != bool(password) or not f"{user}{password}".isascii():
        problem = "a user or a password that cannot be used"
        raise InvalidSettings("url", problem, "both in ASCII and percent-encoded, or none")
    if not isinstance(plaintext, bool):
        raise InvalidSettings("plaintext", kind_of(plaintext), "true or false")
    if security == "none" and not plaintext and not _is_here(host):
        problem = "smtp:// sends everything in the clear, and this is another machine"
        raise InvalidSettings("url", problem, "smtps://, smtp+starttls://, or plaintext = true")
    if name is not None and not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise InvalidSettings("name", "no host name", "a name such as mail.shop.example")
    return Server(
        host=host,
        port=port or usual_port,
        security=security,
        name=name or _own_name(),
        context=None if security == "none" else _context(ca_file),
        user=user,
        password=password,
    )


def _split(url: object) -> tuple[SplitResult, int | None]:
    if not isinstance(url, str):
        raise InvalidSettings("url", kind_of(url), _URLS)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise InvalidSettings("url", "cannot be read", _URLS) from None
    if parts.scheme not in _SCHEMES:
        raise InvalidSettings("url", "none of the known schemes", _URLS)
    if not _is_host(parts.hostname or "") or parts.path not in ("", "/"):
        raise InvalidSettings("url", "no host, or more than a host", _URLS)
    if parts.query or parts.fragment:
        raise InvalidSettings("url", "more than a host", _URLS)
    return parts, port


def _is_host(host: str) -> bool:
    if ":" not in host:
        return _HOST.fullmatch(host) is not None
    try:
        return ipaddress.ip_address(host).version == _IPV6
    except ValueError:
        return False


def _context(ca_file: str | Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except (OSError, TypeError) as error:
        why = getattr(error, "strerror", None) or "it holds no certificate"
        raise InvalidSettings("ca_file", why, "the path of a PEM file") from None


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _own_name() -> str:
    """Return the name of this machine if it is a full one; ask no name server."""
    name = socket.gethostname()
    return name if "." in name and _NAME.fullmatch(name) else "[127.0.0.1]"
