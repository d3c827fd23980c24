"""A webhook reaches no inner host, whatever a URL or a name server says; and its TLS."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import trustme

from dispatcher import (
    ChannelSettings,
    InvalidDraft,
    PermanentFailure,
    TemporaryFailure,
)
from dispatcher.testing import a_message
from dispatcher.transports import Checks
from dispatcher.transports.webhook import WebhookTransport
from tests.support.http_receiver import Receiver, receiving
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
    assert [each.args[0] for each in names.call_args_list] == ["hooks.example"], (
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
        first, second, third = (each.connection for each in one.received)
        assert first == third != second


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
