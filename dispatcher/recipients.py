"""One spelling of each recipient, so that quotas, opt-outs, keys and filters compare the same."""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial

from dispatcher.channel import ChannelSettings
from dispatcher.errors import (
    InvalidDraft,
    InvalidSettings,
    InvalidValue,
    load_named,
    quoted,
    refusal_of,
)
from dispatcher.message import check_recipient

log = logging.getLogger(__name__)

Spell = Callable[[str], str]
_BETWEEN_DIGITS = re.compile(r"[ ()./-]")
_PERHAPS_DIALLED = re.compile(r"\(\s*0\s*\)")
_PHONE = re.compile(r"\+[1-9][0-9]{6,14}")
_TRUNK = re.compile(
    # Countries whose numbers begin with 0 themselves, such as Italy.
    r"\+(?!39|22[5679]|24[127]|267|378|501|507|67[69]|687|800|853|881|888|974|992)"
    # The country codes of one and two digits; all others have three.
    r"(?>[17]|2[07]|3[0-469]|4[013-9]|5[1-8]|6[0-6]|8[1246]|9[0-58]|[0-9]{3})0"
    r"|\+(?:370|375|993)8|\+1(?![2-9][0-9]{9}\Z)|\+7(?![0-9]{10}\Z)"
)
"""A number with the digit that is dialled within a country only: 0, in some countries 8 or 1."""
_PHONE_ACCEPTED = "a phone number with + and its country code, such as +49 151 2345678"


class Spellings:
    """Spells recipients by the rules of their channels. Without a rule they stay as given."""

    def __init__(self, channels: Mapping[str, ChannelSettings]) -> None:
        self._rules = {name: channel.recipients for name, channel in channels.items()}
        self._spells: dict[str, Spell] = {"": str, "email": email, "phone": phone}

    def on(self, channel: object, recipient: str) -> str:
        """Return the spelling on a channel. Raises InvalidDraft, and InvalidSettings."""
        rule = self._rules.get(channel, "") if isinstance(channel, str) else ""
        return recipient if not rule else self._spelt(rule, recipient)

    def all(self, recipient: str, channel: str | None = None) -> tuple[str, ...]:
        """Return the different spellings on one channel, or on all that do not refuse it.

        Raises InvalidDraft where all refuse it.
        """
        if channel is not None:
            return (self.on(channel, recipient),)
        spellings: dict[str, None] = {}
        refusal: InvalidDraft | None = None
        for rule in dict.fromkeys(self._rules.values()):
            try:
                spellings[self._spelt(rule, recipient)] = None
            except InvalidDraft as refused:
                refusal = refused
        if refusal is not None and not spellings:
            raise refusal
        return tuple(spellings)

    def one(self, recipient: str, channel: str | None = None) -> str:
        """Return the spelling. Raises InvalidDraft where channels spell it in several ways."""
        spellings = self.all(recipient, channel)
        if len(spellings) > 1:
            accepted = f"with a channel, or as {quoted(spellings[0])}"
            raise InvalidDraft("recipient", "channels spell it in several ways", accepted)
        return spellings[0]

    def problems(self) -> Mapping[str, InvalidSettings | None]:
        """Load each channel's rule; return its error, or None, by the name of the setting."""
        return {
            f"channels.{channel}.recipients": refusal_of(partial(self._rule, rule))
            for channel, rule in self._rules.items()
            if rule
        }

    def _rule(self, rule: str) -> Spell:
        if rule not in self._spells:
            accepted = "email, phone, or package.module:function of a text"
            spell: Spell = load_named("recipients", rule, accepted)
            if not callable(spell):
                raise InvalidSettings("recipients", f"{quoted(rule)} is no function", accepted)
            self._spells[rule] = spell
        return self._spells[rule]

    def _spelt(self, rule: str, recipient: str) -> str:
        spell = self._rule(rule)
        try:
            spelt = spell(recipient)
        except InvalidValue as refused:
            raise InvalidDraft("recipient", refused.problem, refused.accepted) from None
        except Exception as error:  # noqa: BLE001 - code of others; its text may quote the recipient
            kind = type(error).__name__
            text = "the spelling rule %r raised %s: the draft is refused; correct the function"
            log.error(text, rule, kind)  # noqa: TRY400 - same
            raise InvalidDraft(
                "recipient", f"its spelling raised {kind}", f"a recipient that {rule!r} can spell"
            ) from None
        return check_recipient(spelt)


def email(text: str) -> str:
    """Write the domain of an address in lower case ASCII, and keep the mailbox before the ``@``.

    ``bücher.example`` becomes ``xn--bcher-kva.example``, as name servers know it (RFC 3492). The
    case of a mailbox may matter. Raises InvalidDraft.
    """
    local, at, domain = text.rpartition("@")
    if not (local and domain):
        raise InvalidDraft("recipient", "no e-mail address", "one such as ada@example.org")
    labels = unicodedata.normalize("NFC", domain.lower()).split(".")
    return f"{local}{at}{'.'.join(map(_ascii, labels))}"


def _ascii(label: str) -> str:
    """Return a label as name servers know it; one that is no name, unchanged."""
    is_name = all(unicodedata.category(letter)[0] in "LMN" or letter == "-" for letter in label)
    if label.isascii() or not is_name:
        return label
    return f"xn--{label.encode('punycode').decode('ascii')}"


def phone(text: str) -> str:
    """Write a phone number as E.164 does: ``+`` and 7 to 15 digits, a country code first.

    Raises InvalidDraft, also for what is no one number in all countries: without ``+`` (``00`` is
    dialled before a country code in many of them, ``011`` and ``0011`` in others), with ``(0)``,
    and with the ``0`` that a country dials only within itself, as in ``+44 (020) 7946 0958``.
    """
    if _PERHAPS_DIALLED.search(text):
        raise InvalidDraft("recipient", "a (0) that may belong to the number", _PHONE_ACCEPTED)
    digits = _BETWEEN_DIGITS.sub("", text)
    if not digits.startswith("+"):
        raise InvalidDraft("recipient", "no + before a country code", _PHONE_ACCEPTED)
    if _PHONE.fullmatch(digits) is None:
        raise InvalidDraft("recipient", "no phone number with a country code", _PHONE_ACCEPTED)
    if _TRUNK.match(digits):
        problem = "no number of that country, or one with a digit that is dialled only within it"
        raise InvalidDraft("recipient", problem, _PHONE_ACCEPTED)
    return digits
