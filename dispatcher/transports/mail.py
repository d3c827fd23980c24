"""From a body to an e-mail: what an address and a body may be, and the bytes that are sent."""

from __future__ import annotations

import base64
import re
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from email.header import Header
from email.headerregistry import Address, Group, HeaderRegistry
from email.message import EmailMessage
from email.policy import EmailPolicy
from email.utils import format_datetime
from functools import lru_cache
from typing import Any, NamedTuple
from urllib.parse import quote

from dispatcher.errors import InvalidDraft, InvalidSettings, kind_of, quoted
from dispatcher.message import Message

_KEYS = ("subject", "text", "html", "attachments", "from", "to", "cc", "reply_to", "headers")
_NAMED = ("to", "cc")
_ATTACHED = ("filename", "content", "type")
_LONGEST_SUBJECT = 500
_MOST_NAMED = 100
_LONGEST_HEADER = 900
_LONGEST_LINE = 998  # RFC 5322
_LONGEST_FILENAME = 255  # bytes; percent-encoded it still fits a line
_SIMPLE = re.compile(r"[A-Za-z0-9 ._+-]+")
_TYPE = re.compile(r"(?!multipart/|message/)[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*")
_NAME = re.compile(
    r"X-[A-Za-z0-9-]{1,70}|List-[A-Za-z0-9-]{1,70}|Auto-Submitted|Feedback-ID|Importance"
    r"|In-Reply-To|Precedence|Priority|References",
    re.ASCII | re.IGNORECASE,
)
_STEERS = re.compile(
    r"X-(?:SMTPAPI|(?:Amz|Brevo|Elastic|Elasticemail|Forefront|Gm|Google|Mailersend|Mailgun|Mailin"
    r"|Mailjet|Mandrill|MC|MJ|MS|MSYS|PM|Postmark|Resend|Sendgrid|SES|SG|Sib|SMTP2GO|Sparkpost|Spam"
    r"|Virtual)-.*|Dkim-Options|Job|EnvId)",
    re.ASCII | re.IGNORECASE,
)
"""Headers by which providers are told what to do: other recipients, templates, accounts, queues."""
_LONGEST_ADDRESS = 254  # bytes
_LONGEST_LOCAL = 64
_BEYOND = r"\u0080-\U0010ffff"
_ATOM = rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~{_BEYOND}-]+"
_LOCAL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_EDGE = rf"[A-Za-z0-9{_BEYOND}]"
_LABEL = rf"{_EDGE}(?:[A-Za-z0-9{_BEYOND}-]{{0,61}}{_EDGE})?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NEVER_IN_ADDRESSES = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})
_NEVER = frozenset({"Cc", "Cs", "Zl", "Zp"})
_NEVER_IN_TEXTS = re.compile("[\0\ud800-\udfff]")
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_ANY_TYPE = "application/octet-stream"
_EOL = re.compile(rb"\r\n|\r|\n")
_MAILBOX = "Ada <ada@example.org> or ada@example.org"
_SENDER = "Shop <mail@shop.example> or mail@shop.example, in ASCII but for the name"


class Mail(NamedTuple):
    """An e-mail to one recipient; ``is_international`` if an address in it is beyond ASCII."""

    sender: str
    recipient: str
    content: bytes
    is_international: bool


class _Policy(EmailPolicy):
    """Writes the headers that a body makes as they are.

    The standard library decodes encoded words, which may hide a line break, and turns a long word,
    such as the address in a List-Unsubscribe, into encoded words, which no program reads.
    """

    def header_store_parse(self, name: str, value: Any) -> tuple[str, Any]:
        return (name, value) if _is_text(name) else super().header_store_parse(name, value)

    def fold_binary(self, name: str, value: Any) -> bytes:
        if not _is_text(name):
            return super().fold_binary(name, value)
        if not value.isascii() or "=?" in value or len(f"{name}: {value}") > _LONGEST_LINE:
            value = Header(value, "utf-8", header_name=name).encode(linesep="\r\n")
        return f"{name}: {value}\r\n".encode("ascii")


def _is_text(name: str) -> bool:
    return name in ("Subject", "Content-Disposition") or _NAME.fullmatch(name) is not None


_PLAIN = _Policy(linesep="\r\n", raise_on_defect=False, cte_type="7bit")
_INTERNATIONAL = _PLAIN.clone(utf8=True)


def compose(
    message: Message,
    sender: Address,
    now: datetime,
    allowed: frozenset[str] = frozenset(),
    senders: frozenset[str] = frozenset(),
) -> Mail:
    """Return the e-mail of a message. Raises InvalidDraft where :func:`check_mail` does."""
    recipient, body = message.recipient, message.body
    check_mail(recipient, body, allowed, senders)
    if "from" in body:
        sender = read_sender(body["from"])
    envelope = _in_ascii(_address(recipient))
    to, cc = (
        [_in_ascii(read_mailbox(name, text)) for text in body.get(name, ())] for name in _NAMED
    )
    reply_to = [_in_ascii(_address(body["reply_to"]))] if "reply_to" in body else []
    addresses = [mailbox.addr_spec for mailbox in (envelope, *to, *cc, *reply_to)]
    is_international = not "".join(addresses).isascii()
    mail = EmailMessage(_INTERNATIONAL if is_international else _PLAIN)
    mail["From"] = sender
    mail["To"] = to or envelope
    for name, mailboxes in (("Cc", cc), ("Reply-To", reply_to)):
        if mailboxes:
            mail[name] = mailboxes
    mail["Date"] = format_datetime(now)
    mail["Message-ID"] = f"<{message.id}@{sender.domain}>"
    if "subject" in body:
        mail["Subject"] = body["subject"]
    for name, value in body.get("headers", {}).items():
        mail[name] = value
    if "text" in body:
        mail.set_content(body["text"])
        if "html" in body:
            mail.add_alternative(body["html"], subtype="html")
    else:
        mail.set_content(body["html"], subtype="html")
    for attachment in body.get("attachments", ()):
        maintype, _, subtype = attachment.get("type", _ANY_TYPE).partition("/")
        mail.add_attachment(
            base64.b64decode(attachment["content"]),
            maintype=maintype,
            subtype=subtype,
            disposition=_disposition(attachment["filename"]),
        )
    content = _EOL.sub(b"\r\n", mail.as_bytes())
    return Mail(sender.addr_spec, envelope.addr_spec, content, is_international)


def read_sender(text: object, field: str = "from") -> Address:
    """Return the address that mail comes from, with any display name. Raises InvalidDraft."""
    sender = _in_ascii(read_mailbox(field, text))
    if not sender.addr_spec.isascii():
        raise InvalidDraft(field, "an address with characters beyond ASCII", _SENDER)
    return sender


def read_mailbox(field: str, text: object) -> Address:
    """Read ``Ada <ada@example.org>`` or a bare address. Raises InvalidDraft, without a quote."""
    if not isinstance(text, str):
        raise InvalidDraft(field, kind_of(text), _MAILBOX)
    check_header(field, text, longest=_LONGEST_SUBJECT)
    header = HeaderRegistry()("From", text)
    groups: tuple[Group, ...] = getattr(header, "groups", ())
    if len(groups) != 1 or groups[0].display_name is not None or header.defects:
        raise InvalidDraft(field, "not one address", _MAILBOX)
    [mailbox] = groups[0].addresses
    if mailbox.display_name:
        check_header(field, mailbox.display_name, longest=_LONGEST_SUBJECT)
    address = check_address(field, f"{mailbox.username}@{mailbox.domain}")
    return _address(address, mailbox.display_name)


def check_mail(
    recipient: object,
    body: Mapping[str, Any],
    allowed: frozenset[str] = frozenset(),
    senders: frozenset[str] = frozenset(),
) -> None:
    """Raise InvalidDraft for what could never be sent as an e-mail. Quotes nothing of it.

    ``allowed`` are names of headers, in lower case, that may be set though they steer a provider;
    ``senders`` addresses, in lower case, from which a body may ask to be sent.
    """
    check_address("recipient", recipient)
    _check_keys("body", body, _KEYS)
    if "text" not in body and "html" not in body:
        raise InvalidDraft("body", "neither text nor html", "at least one of them")
    for name in ("text", "html"):
        if name in body:
            _check_content(f"body.{name}", body[name])
    if "subject" in body:
        check_header("body.subject", body["subject"], longest=_LONGEST_SUBJECT)
    if "from" in body and read_sender(body["from"], "body.from").addr_spec.lower() not in senders:
        raise InvalidDraft("body.from", "no sender of the channel", "one of its option senders")
    for name in _NAMED:
        mailboxes = body.get(name, [])
        if not isinstance(mailboxes, list | tuple) or len(mailboxes) > _MOST_NAMED:
            accepted = f"a list of at most {_MOST_NAMED} addresses"
            raise InvalidDraft(f"body.{name}", "no such list", accepted)
        for mailbox in mailboxes:
            read_mailbox(f"body.{name}", mailbox)
    if "reply_to" in body:
        check_address("body.reply_to", body["reply_to"])
    _check_headers(body.get("headers", {}), allowed)
    _check_attachments(body.get("attachments", []))


def check_address(field: str, text: object) -> str:
    """Return ``text`` if it is one address: ``local@domain`` and nothing else.

    No display name, comment, list or group, no quoted local part and no address literal. What is
    beyond ASCII must be in its normal form (NFKC): what looks like an ``@`` to some is none here.
    Raises InvalidDraft, which does not quote it.
    """
    accepted = "one address without a display name, such as ada@example.org"
    if not isinstance(text, str):
        raise InvalidDraft(field, kind_of(text), accepted)
    local, _, domain = text.rpartition("@")
    is_address = (
        len(text.encode(errors="replace")) <= _LONGEST_ADDRESS
        and len(local.encode(errors="replace")) <= _LONGEST_LOCAL
        and _LOCAL.fullmatch(local)
        and "=?" not in local  # what begins an encoded word
        and _DOMAIN.fullmatch(domain)
        # Some characters are read as a dot.
        and all(char.isascii() or unicodedata.category(char)[0] in "LMN" for char in domain)
    )
    if not is_address:
        raise InvalidDraft(field, "no address", accepted)
    is_plain = not any(unicodedata.category(char) in _NEVER_IN_ADDRESSES for char in text)
    if not text.isascii() and not (is_plain and unicodedata.is_normalized("NFKC", text)):
        problem = "characters that are invisible, or not in their normal form (NFKC)"
        raise InvalidDraft(field, problem, accepted)
    return text


def check_header(field: str, value: object, *, longest: int) -> str:
    """Return ``value`` if it is one visible line of 1 to ``longest`` characters.

    Refused are control characters, line and paragraph separators, bidi controls, and white space at
    the ends. Joiners are allowed: some scripts and many emoji need them. Raises InvalidDraft.
    """
    accepted = f"one line of 1 to {longest} characters without control characters"
    if not isinstance(value, str):
        raise InvalidDraft(field, kind_of(value), accepted)
    if not 1 <= len(value) <= longest:
        raise InvalidDraft(field, f"{len(value)} characters", accepted)
    for char in value:
        if char in _BIDI or unicodedata.category(char) in _NEVER:
            raise InvalidDraft(field, f"the character U+{ord(char):04X}", accepted)
    if value != value.strip():
        raise InvalidDraft(field, "white space at an end", accepted)
    return value


def _address(text: str, name: str = "") -> Address:
    local, _, domain = text.rpartition("@")
    return Address(name, local, domain)


def _in_ascii(address: Address) -> Address:
    """Return an address with its domain as A-labels, which servers without SMTPUTF8 take.

    The codec is that of IDNA 2003. Where IDNA 2008 means another domain (a sharp s, say), its
    labels do not come back, and the address stays as it is.
    """
    domain = address.domain
    if address.username.isascii() and not domain.isascii():
        with suppress(UnicodeError):
            labels = domain.encode("idna")
            if labels.decode("idna") == domain.lower():
                return Address(address.display_name, address.username, labels.decode())
    return address


def _disposition(filename: str) -> str:
    if _SIMPLE.fullmatch(filename):
        return f'attachment; filename="{filename}"'
    return f"attachment; filename*=utf-8''{quote(filename, safe='')}"


def _check_keys(field: str, keys: Iterable[str], known: tuple[str, ...]) -> None:
    for key in keys:
        if key not in known:
            raise InvalidDraft(f"{field}.{key[:40]}", "unknown", ", ".join(known))


def _check_content(field: str, text: object) -> None:
    if not isinstance(text, str):
        raise InvalidDraft(field, kind_of(text), "text")
    if _NEVER_IN_TEXTS.search(text):
        raise InvalidDraft(field, "holds a NUL character or a lone surrogate", "text")


def read_senders(texts: Iterable[object]) -> frozenset[str]:
    """Return the addresses of the option ``senders``, in lower case. Raises InvalidDraft."""
    return frozenset(map(_read_option, texts))


@lru_cache(maxsize=256)
def _read_option(text: object) -> str:
    """Read it once: the standard library takes longer for it than for all else at a submit."""
    return read_sender(text, "senders").addr_spec.lower()


def read_allowed(names: Collection[str]) -> frozenset[str]:
    """Return the option ``allow_headers``, in lower case. Raises InvalidSettings."""
    for name in names:
        if not _NAME.fullmatch(name):
            problem = f"no body may have {quoted(name)}"
            raise InvalidSettings("allow_headers", problem, "names such as X-Mailgun-Tag")
    return frozenset(name.lower() for name in names)


def _check_headers(headers: object, allowed: frozenset[str]) -> None:
    accepted = "X-…, List-…, Auto-Submitted, Feedback-ID, Importance, In-Reply-To, Precedence, "
    accepted += "Priority and References, each once"
    if not isinstance(headers, Mapping):
        raise InvalidDraft("body.headers", kind_of(headers), "texts by name")
    seen = set()
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise InvalidDraft("body.headers", "a name that no body may have", accepted)
        if _STEERS.fullmatch(name) and name.lower() not in allowed:
            field, accepted = f"body.headers.{name}", "others, or the channel's allow_headers"
            raise InvalidDraft(field, "it steers the mail provider", accepted)
        if name.lower() in seen:
            raise InvalidDraft(f"body.headers.{name}", "given twice", accepted)
        seen.add(name.lower())
        check_header(f"body.headers.{name}", value, longest=_LONGEST_HEADER)


def _check_attachments(attachments: object) -> None:
    if not isinstance(attachments, list | tuple):
        raise InvalidDraft("body.attachments", kind_of(attachments), "a list")
    for index, attachment in enumerate(attachments):
        field = f"body.attachments[{index}]"
        if not isinstance(attachment, Mapping):
            accepted = f"an object of {', '.join(_ATTACHED)}"
            raise InvalidDraft(field, kind_of(attachment), accepted)
        _check_keys(field, attachment, _ATTACHED)
        filename = attachment.get("filename")
        filename = check_header(f"{field}.filename", filename, longest=_LONGEST_FILENAME)
        if len(filename.encode()) > _LONGEST_FILENAME:
            raise InvalidDraft(f"{field}.filename", "too long", f"{_LONGEST_FILENAME} bytes")
        if "/" in filename or "\\" in filename:
            raise InvalidDraft(f"{field}.filename", "a path", "a name without folders")
        kind = attachment.get("type", _ANY_TYPE)
        if not isinstance(kind, str) or not _TYPE.fullmatch(kind):
            accepted = "a media type such as application/pdf; neither multipart nor message"
            raise InvalidDraft(f"{field}.type", "no such media type", accepted)
        try:
            base64.b64decode(attachment["content"], validate=True)
        except (KeyError, TypeError, ValueError):
            accepted = "the content as base64, without line breaks"
            raise InvalidDraft(f"{field}.content", "not base64", accepted) from None
