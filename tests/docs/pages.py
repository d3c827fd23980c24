"""The pages that tests read."""

from __future__ import annotations

import re

from tests.support.environment import ROOT


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(text: str, language: str) -> list[str]:
    """Return the blocks of code in this language that are not within a list or a tab."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
