"""One spelling of each recipient."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher import InvalidDraft, InvalidSettings, Settings
from dispatcher.channel import Spellings, email, phone


def upper(text: str) -> str:
    return text.upper()


def fail(text: str) -> str:
    raise RuntimeError(text)


def nothing(text: str) -> Any:
    del text


def spellings(**rules: str) -> Spellings:
    channels = {name: {"transport": "memory", "recipients": rule} for name, rule in rules.items()}
    return Settings.load(channels=channels, default_channels=False).spellings


@pytest.mark.parametrize(
    ("text", "spelt"),
    [
        ("Ada@EXAMPLE.org", "Ada@example.org"),
        ("ada@example.org", "ada@example.org"),
        ("ada@MÜLLER.example", "ada@xn--mller-kva.example"),
        ("ada@mu\u0308ller.example", "ada@xn--mller-kva.example"),
        ("ada@xn--mller-kva.example", "ada@xn--mller-kva.example"),
        ("ada@straße.example", "ada@xn--strae-oqa.example"),
        ("ada@b。example", "ada@b。example"),
    ],
)
def test_a_domain_has_one_spelling(text: str, spelt: str) -> None:
    assert email(text) == spelt == email(spelt)


@pytest.mark.parametrize("text", ["+4915112345678", " +49 151 123-456.78", "+49 (151) 12345678"])
def test_a_phone_number_has_one_spelling(text: str) -> None:
    assert phone(text) == "+4915112345678" == phone(phone(text))


@pytest.mark.parametrize(
    "text",
    [
        *("0151 2345678", "4915112345678", "49 151 12345678", "512 555 0123", "000491512345678"),
        *("ada", "+49", "+", "", "+4915112345678901", "+49151x", "+٤٩١٥١٢٣٤٥٦", "++49151234567"),
        *("+49 (0)151 2345678", "004915112345678", "00 49 151 12345678", "0011 49 151 12345678"),
        *("011 49 151 12345678", "001 65 8234 5678", "+44 (020) 7946 0958", "+44 020 7946 0958"),
        *("+49 (0151) 2345678", "+49 ( 0 ) 151 2345678", "+420 0123 456 789"),
        *("+36 06 1 234 5678", "+7 8 912 345 67 89", "+375 8 029 123 45 67", "+1 1 212 555 0123"),
        *("+1 0 212 555 0123", "+39 (0)6 1234 5678"),
    ],
)
def test_a_malformed_phone_number_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(InvalidDraft) as caught:
        phone(text)
    assert caught.value.field == "recipient"
    assert "+49 151 2345678" in caught.value.accepted
    assert not text or text not in caught.value.problem


@pytest.mark.parametrize(
    "text",
    ["+390612345678", "+2250123456789", "+441041234567", "+78121234567", "+12125550123",
     "+420601123456", "+37060012345", "+50712345", "+4420794609580"],
)  # fmt: skip
def test_a_number_that_only_looks_as_if_it_had_such_a_digit_is_taken(text: str) -> None:
    assert phone(text) == text


@pytest.mark.parametrize("text", ["ada", "@example.org", "ada@", "+4915112345678"])
def test_a_malformed_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidDraft, match="no e-mail address"):
        email(text)


def test_each_channel_spells_by_its_own_rule() -> None:
    known = spellings(mail="email", sms="phone", push="")
    assert known.on("mail", "Ada@B.C") == "Ada@b.c"
    assert known.on("push", "Ada@B.C") == "Ada@B.C"
    assert known.on("gone", "Ada@B.C") == "Ada@B.C"
    assert known.all("Ada@B.C") == ("Ada@b.c", "Ada@B.C")
    assert known.all("+49 151 2345678") == ("+491512345678", "+49 151 2345678")
    assert known.one("Ada@b.c") == "Ada@b.c"
    with pytest.raises(InvalidDraft, match="several ways"):
        known.one("Ada@B.C")
    assert known.one("Ada@B.C", "mail") == "Ada@b.c"
    with pytest.raises(InvalidDraft, match="country code"):
        spellings(sms="phone").all("ada")


def test_a_function_of_ones_own_spells() -> None:
    assert spellings(a=f"{__name__}:upper").on("a", "ada") == "ADA"


@pytest.mark.parametrize(
    ("rule", "error", "says"),
    [
        ("fail", InvalidDraft, "raised RuntimeError"),
        ("nothing", InvalidDraft, "nothing"),
        ("missing", InvalidSettings, "AttributeError"),
        ("__name__", InvalidSettings, "no function"),
    ],
)
def test_a_function_that_fails_is_named_and_quotes_nothing(
    rule: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        spellings(a=f"{__name__}:{rule}").on("a", "hunter2")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("rule", ["mail", "a.b", ":x", "a b:c"])
def test_other_rules_are_refused(rule: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        spellings(a=rule)
    assert caught.value.field == "channels.a.recipients"
