"""A webhook reaches no inner host, whatever a URL or a name server says; and its TLS."""

from __future__ import annotations

import io
import random
import socket
import ssl
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address
from typing import Any
from unittest.mock import Mock

import pytest
import trustme

from dispatcher import ChannelSettings, InvalidDraft, PermanentFailure, TemporaryFailure
from dispatcher.errors import InvalidValue
from dispatcher.testing import a_message
from dispatcher.transports import Checks
from dispatcher.transports.connections import resolve
from dispatcher.transports.webhook import WebhookTransport
from dispatcher.transports.webhook_urls import Addresses, Reader
from tests.support.http_receiver import Handler, Receiver, receiving
from tests.transports.conftest import Authority, in_time, open_to


@pytest.fixture
def secure(authority: Authority) -> Iterator[Receiver]:
    with receiving(authority.server("hooks.example")) as one:
        yield one


def url_of(receiver: Receiver, host: str = "hooks.example", scheme: str = "https") -> str:
    return f"{scheme}://{host}:{receiver.port}/hook"


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["::1"], ["1.1.1.1", "127.0.0.1"], ["127.0.0.1", "1.1.1.1"],
     ["::ffff:127.0.0.1"], ["64:ff9b::7f00:1"], ["169.254.169.254"], ["fe80::1%lo"], ["odd"]],
    ids=str,
)  # fmt: skip
def test_a_name_with_an_inner_address_is_refused_whole(
    receiver: Receiver, addresses: list[str]
) -> None:
    transport = open_to(receiver.port, allow=[], resolver=Mock(return_value=addresses))
    with pytest.raises(PermanentFailure, match="may not be reached") as caught:
        transport.send(a_message(recipient=url_of(receiver, scheme="http")))
    assert receiver.received == []
    assert "hooks.example" not in str(caught.value)


def test_a_name_that_is_rebound_after_the_look_is_connected_to_where_the_look_went(
    receiver: Receiver,
) -> None:
    names = Mock(side_effect=[["127.0.0.2"], ["127.0.0.1"]])
    transport = open_to(receiver.port, allow=["127.0.0.2"], resolver=names)
    message = a_message(recipient=url_of(receiver, scheme="http"))
    with pytest.raises(TemporaryFailure, match="refused"):
        transport.send(message)  # to 127.0.0.2, where nobody listens
    assert [call.args[0] for call in names.call_args_list] == ["hooks.example"], (
        "one look for one connection"
    )
    with pytest.raises(PermanentFailure, match="may not be reached"):
        transport.send(message)
    assert receiver.received == []


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LocalHost"])
def test_a_url_of_the_channel_that_names_this_machine_needs_no_other_option(
    receiver: Receiver, host: str
) -> None:
    names = Mock(return_value=["127.0.0.1"])
    url = url_of(receiver, host, "http")
    transport = WebhookTransport(url=url, resolver=names)
    assert transport.send(a_message()) == "204"
    with pytest.raises(PermanentFailure, match="URL is refused"):
        WebhookTransport(resolver=names).send(a_message(recipient=url))


@pytest.mark.parametrize("addresses", [["127.0.0.1", "1.1.1.1"], ["10.0.0.1"], ["::"]], ids=str)
def test_localhost_is_this_machine_or_nothing(addresses: list[str]) -> None:
    transport = WebhookTransport(url="http://localhost/", resolver=Mock(return_value=addresses))
    with pytest.raises(PermanentFailure, match="may not be reached"):
        transport.send(a_message())


def test_an_allowed_name_may_have_any_address(receiver: Receiver) -> None:
    names = Mock(return_value=["127.0.0.1"])
    transport = open_to(receiver.port, allow=["hooks.example"], resolver=names)
    assert transport.send(a_message(recipient=url_of(receiver, scheme="http"))) == "204"
    with pytest.raises(PermanentFailure):
        transport.send(a_message(recipient=url_of(receiver, "other.example", "http")))


@pytest.mark.parametrize(
    "recipient",
    ["ada", "http://hooks.example/", "https://127.0.0.1/", "https://127.1/", "https://[::1]/",
     "https://2130706433/", "https://localhost/", "https://a:b@hooks.example/",
     "https://hooks.example:8443/", "https://hooks.example/#x"],
)  # fmt: skip
def test_an_impossible_url_is_refused_at_submit_and_when_it_is_sent(recipient: str) -> None:
    checks = Checks({"hooks": ChannelSettings(transport="webhook")})
    with pytest.raises(InvalidDraft) as caught:
        checks("hooks", recipient, {"text": "x"})
    assert caught.value.field == "recipient"
    with pytest.raises(PermanentFailure, match="URL is refused"):
        WebhookTransport().send(a_message(recipient=recipient))


def test_allowed_addresses_are_accepted_at_submit() -> None:
    options = {"http": True, "ports": [8080], "allow": ["127.0.0.1", "localhost"]}
    checks = Checks(
        {
            "open": ChannelSettings(transport="webhook"),
            "inner": ChannelSettings(transport="webhook", options=options),
            "fixed": ChannelSettings(
                transport="webhook", options={"url": "https://hooks.example/"}
            ),
            "broken": ChannelSettings(transport="webhook", options={"allow": 7}),
        }
    )
    checks("open", "https://hooks.example/x", {})
    checks("inner", "http://127.0.0.1:8080/", {})
    checks("inner", "http://localhost:8080/", {})
    checks("fixed", "user 4711", {})
    checks("broken", "ada", {})


def test_a_certificate_is_verified_for_the_name_and_the_connection_goes_to_the_address(
    secure: Receiver,
) -> None:
    transport = open_to(secure.port, resolver=Mock(return_value=["127.0.0.1"]))
    assert transport.send(a_message(recipient=url_of(secure))) == "204"
    assert secure.received[0].headers["host"] == f"hooks.example:{secure.port}"
    with pytest.raises(TemporaryFailure, match="verified: it is for another name"):
        transport.send(a_message(recipient=url_of(secure, "other.example")))
    assert len(secure.received) == 1


def test_two_names_at_one_address_share_no_connection(authority: Authority) -> None:
    with receiving(authority.server("a.example", "b.example")) as one:
        transport = open_to(one.port, resolver=Mock(return_value=["127.0.0.1"]))
        for host in ("a.example", "b.example", "a.example"):
            transport.send(a_message(recipient=url_of(one, host)))
        first, second, third = (request.connection for request in one.received)
        assert first == third != second


def test_what_tls_has_decrypted_beyond_an_answer_is_that_of_no_other_message(
    secure: Receiver,
) -> None:
    """It lies in no buffer of the socket: the first answer fills that of its reader exactly."""

    def answer(handler: Handler) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"
        filler = io.DEFAULT_BUFFER_SIZE - len(head % 8_000)
        more = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
        handler.wfile.write(head % filler + b"x" * filler + more)

    secure.answer = answer
    transport = open_to(secure.port, resolver=Mock(return_value=["127.0.0.1"]))
    for _ in range(3):
        transport.send(a_message(recipient=url_of(secure)))
    assert len({request.connection for request in secure.received}) == 3


def test_an_unknown_authority_is_not_trusted() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("hooks.example").configure_cert(context)
    with receiving(context) as impostor:
        transport = open_to(impostor.port, resolver=Mock(return_value=["127.0.0.1"]))
        with pytest.raises(TemporaryFailure, match="certificate cannot be verified"):
            transport.send(a_message(recipient=url_of(impostor)))
        assert impostor.received == []


def test_a_handshake_that_hangs_is_cut_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with in_time(), pytest.raises(TemporaryFailure, match="no connection in time"):
            open_to(port, timeout=0.3).send(a_message(recipient=f"https://127.0.0.1:{port}/"))


PUBLIC = ["1.1.1.1", "93.184.215.14", "172.32.0.1", "172.15.255.255", "100.63.255.255",
          "100.128.0.1", "169.253.1.1", "192.0.1.1", "198.17.0.1", "198.20.0.1", "223.255.255.255",
          "2606:4700::1111", "2a00:1450:4001::200e", "2001:200::1", "2620:fe::fe",
          "::ffff:1.1.1.1", "64:ff9b::1.1.1.1"]  # fmt: skip
INWARD = ["0.0.0.0",  # noqa: S104 - refused, not bound
          "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200",
          "100.127.255.255", "127.0.0.1", "127.255.255.254", "168.63.129.16", "169.254.169.254",
          "169.254.170.2", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1",
          "192.88.99.1", "192.168.0.1", "192.168.255.255", "198.18.0.1", "198.19.255.255",
          "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.255", "240.0.0.1",
          "255.255.255.255",
          "::", "::1", "::7f00:1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:7f00:1",
          "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1",
          "64:ff9b::10.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::7f00:1", "100::1",
          "2001::1", "2001:0:53aa:64c:0:fbff:80ff:fffe", "2001:2::1", "2001:10::1", "2001:20::1",
          "2001:db8::1", "2002:7f00:1::", "2002:a00:1::1", "2002:a9fe:a9fe::", "2002:101:101::1",
          "3fff::1", "5f00::1", "4000::1", "fc00::1", "fd00:ec2::254", "fd12:3456::1", "fe80::1",
          "fe80::1%lo", "fec0::1", "ff02::1", "ff0e::1"]  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_may_be_reached(address: str) -> None:
    assert Addresses().allow(address)


@pytest.mark.parametrize("address", INWARD)
def test_others_may_not(address: str) -> None:
    assert not Addresses().allow(address)


def test_private_addresses_are_never_reached() -> None:
    luck = random.Random(5)  # noqa: S311 - a seed, so that it is the same each time
    ours = Addresses()
    for _ in range(4_000):
        v4, v6 = IPv4Address(luck.getrandbits(32)), IPv6Address(luck.getrandbits(128))
        for address in (v4, v6):
            hidden = not address.is_global or address.is_multicast or address.is_reserved
            assert not (hidden and ours.allow(str(address))), address


SPELLINGS = [
    "0.0.0.0",  # noqa: S104 - refused, not bound
    "127.0.0.1", "127.1", "127.0.1", "0", "2130706433", "0x7f000001", "0x7f.1",
    "0x7f.0.0.1", "0X7F.1", "017700000001", "0177.0.0.1", "0177.1", "127.0.0.1.", "127.1.",
    "127.0.0.01", "00000127.0.0.1", "4294967297", "[::1]", "[::]", "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]", "[0:0:0:0:0:0:0:1]", "[::127.0.0.1]", "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]", "[fe80::1%25lo]", "[fe80::1%lo]", "[fd00:ec2::254]", "[::1", "::1", "[]",
    "[127.0.0.1]", "[v1.x]", "169.254.169.254", "0xa9fea9fe", "2852039166", "100.64.0.1",
    "198.18.0.1", "192.0.2.1", "224.0.0.1", "255.255.255.255", "10.0.0.1", "10.1", "172.16.0.1",
    "192.168.1.1", "192.168.257", "localhost", "LOCALHOST", "localhost.", "a.localhost",
    "127。0。0。1", "①②⑦.⓪.⓪.①", "１２７.0.0.1", "%31%32%37.0.0.1", "127.0.0.1%00.example.com",
    "example.com%2f@127.0.0.1", "a b", "", ".", "..", "-a.example", "a..b", "x" * 64,
    ".".join(["x" * 60] * 5), "1.2.3.4.5", "example.1", "example.0x1",
]  # fmt: skip


@pytest.mark.parametrize("host", SPELLINGS)
def test_no_spelling_of_an_inner_host_is_taken_from_a_url(host: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Reader(Addresses()).read(f"https://{host}/hook")
    assert caught.value.field == "url"


REFUSED = {
    "scheme": [
        "http://example.com/", "ftp://example.com/", "file:///etc/passwd", "gopher://example.com/",
        "//example.com/", "example.com",
    ],
    "host": [
        "https:example.com", "https:///hook", "https://example.com:/", "https://[::1]x/",
        "https://example.com:99999999/", "https://example.com:443:443/", "https://example.com:+443/",
    ],
    "user": [
        "https://user@example.com/", "https://user:secret@example.com/",
        "https://example.com@127.0.0.1/",
    ],
    "fragment": [
        "https://example.com/#x", "https://example.com#@127.0.0.1/",
        "https://127.0.0.1#.example.com/",
    ],
    "characters": [
        "", "https://example.com\\@127.0.0.1/", "https://example.com/\r\nHost: x",
        "https://example.com/ x", "\thttps://example.com/", "https://exa\nmple.com/",
        "https://example.com/\x00", "https://exämple.com/", "https://example.com/ä",
        "https://example.com/<x>", "https://example.com:4４3/", "https://hoo\u212as.example.com/",
        "http\u017f://example.com/",
    ],
    "port": [
        "https://example.com:0/", "https://example.com:22/", "https://example.com:80/",
        "https://example.com:65536/",
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("says", "url"), [(says, url) for says, urls in REFUSED.items() for url in urls]
)
def test_a_url_that_two_readers_could_take_differently_is_refused_without_being_quoted(
    says: str, url: str
) -> None:
    with pytest.raises(InvalidValue, match=says) as caught:
        Reader(Addresses()).read(url)
    for secret in ("secret", "example.com", "127.0.0.1"):
        assert secret not in str(caught.value)


def test_a_url_is_read_into_what_is_connected_to() -> None:
    read = Reader(Addresses(), http=True, ports=(8443,)).read
    target = read("HTTPS://Hooks.Example.com.:8443/a%20b;c?d=e&f")
    assert (target.scheme, target.host, target.port) == ("https", "hooks.example.com", 8443)
    assert target.path == "/a%20b;c?d=e&f"
    assert target.authority == "hooks.example.com:8443"
    assert read("https://example.com").path == "/"
    assert read("https://example.com?x=1").path == "/?x=1"
    assert read("https://example.com:443/").authority == "example.com"
    assert read("http://xn--exmple-cua.com/").port == 80
    assert read("https://[2606:4700:0::1111]/").authority == "[2606:4700::1111]"
    assert "token" not in repr(read("https://example.com/token"))


def test_the_allow_list_takes_networks_addresses_and_names() -> None:
    allow = Addresses(["10.1.0.0/16", "fd00::7", "127.0.0.1", "hooks.internal", "LocalHost"])
    assert allow.allow("10.1.2.3")
    assert allow.allow("::ffff:10.1.2.3")
    assert allow.allow("64:ff9b::10.1.2.3")
    assert not allow.allow("10.2.0.1")
    assert allow.allow("fd00::7")
    assert not allow.allow("fd00::8")
    assert allow.allow_name("hooks.internal")
    assert not allow.allow_name("internal")
    assert not allow.allow_name("x.hooks.internal")
    read = Reader(allow).read
    assert read("https://127.0.0.1/").host == "127.0.0.1"
    assert read("https://localhost/").host == "localhost"
    assert read("https://HOOKS.internal./").host == "hooks.internal"
    with pytest.raises(InvalidValue, match="may not be reached"):
        read("https://127.0.0.2/")


@pytest.mark.parametrize("allow", ["10.0.0.0/8", ["10.0.0.1/8"], ["*.internal"], ["127.1"],
                                   ["https://x"], [7], [""], 7])  # fmt: skip
def test_an_allow_list_that_cannot_be_read_is_refused(allow: Any) -> None:
    with pytest.raises(ValueError, match="allow"):
        WebhookTransport(allow=allow)


def test_a_link_local_address_keeps_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    address = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1", 25, 0, 1))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [address] * 2)
    assert resolve("mail.example", 25) == [f"fe80::1%{socket.if_indextoname(1)}"]
