"""Typed channels of a shop, one for each kind of type."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from pydantic import BaseModel
from typing_extensions import TypedDict  # pydantic asks for it before Python 3.12

from dispatcher import Channel


class EmailBody(BaseModel):
    subject: str
    text: str


class SmsBody(BaseModel):
    text: str


class PushBody(TypedDict):
    title: str
    on: date


@dataclass
class CodeBody:
    code: str


class LongEmailBody(EmailBody):
    html: str


Email = Channel[EmailBody]("email")
Push = Channel[PushBody]("push")
Code = Channel[CodeBody]("code")
Either = Channel[EmailBody | SmsBody]("either")
