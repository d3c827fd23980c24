"""What one e-mail address may be: stricter than RFC 5321, so that nobody reads it as two."""

from __future__ import annotations

import re
import unicodedata

from dispatcher.errors import InvalidDraft, kind_of

_LONGEST = 254
_LONGEST_LOCAL = 64
_BEYOND = r"\u0080-\U0010ffff"
_ATOM = rf"[A-Za-z0-9!#$%&'*+/=?^_`{{|}}~{_BEYOND}-]+"
_LOCAL = re.compile(rf"{_ATOM}(?:\.{_ATOM})*")
_EDGE = rf"[A-Za-z0-9{_BEYOND}]"
_LABEL = rf"{_EDGE}(?:[A-Za-z0-9{_BEYOND}-]{{0,61}}{_EDGE})?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_NEVER = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"})

ACCEPTED = "one address without a display name, such as ada@example.org"


def check_address(field: str, text: object) -> str:
    """Return ``text`` if it is one address: ``local@domain`` and nothing else.

    No display name, comment, list or group, no quoted local part and no address literal. What is
    beyond ASCII must be in its normal form (NFKC): what looks like an ``@`` to some is none here.
    Raises InvalidDraft, which does not quote it.
    """
    if not isinstance(text, str):
        raise InvalidDraft(field, kind_of(text), ACCEPTED)
    local, _, domain = text.rpartition("@")
    problem = None
    if not local or not domain:
        problem = "no address"
    elif len(text.encode(errors="replace")) > _LONGEST:
        problem = f"longer than {_LONGEST} bytes"
    elif len(local.encode(errors="replace")) > _LONGEST_LOCAL:
        problem = f"more than {_LONGEST_LOCAL} bytes before the @"
    elif not _LOCAL.fullmatch(local) or "=?" in local:  # what begins an encoded word
        problem = "not allowed as it stands before the @"
    elif not _DOMAIN.fullmatch(domain):
        problem = "no domain after the @"
    elif not all(each.isascii() or unicodedata.category(each)[0] in "LMN" for each in domain):
        problem = "a character in the domain that no name has"  # some are read as a dot
    elif not text.isascii() and not _is_normal(text):
        problem = "characters that are invisible, or not in their normal form (NFKC)"
    if problem is not None:
        raise InvalidDraft(field, problem, ACCEPTED)
    return text


def _is_normal(text: str) -> bool:
    if any(unicodedata.category(each) in _NEVER for each in text):
        return False
    return unicodedata.is_normalized("NFKC", text)
