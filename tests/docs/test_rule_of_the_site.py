"""docs/assets/rule.js answers as the windows in Redis do: verdict, quota, members, next slot."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dispatcher import QuotaExceeded
from dispatcher.errors import SlotRefused
from dispatcher.message import new_id
from dispatcher.quota import parse_quota
from dispatcher.reservation.booking import Terms
from dispatcher.scope import own_scope
from dispatcher.times.quiet_hours import Hours
from dispatcher.times.send_time import from_ms, to_ms
from tests.support.browser import chromium
from tests.support.reserving import Reserving, reserve

RULE = Path(__file__).parents[2] / "docs/assets/rule.js"
BASE = 4_102_444_800_000  # 2100-01-01, a Friday
MINUTE = 60_000
REQUESTS = 40
_ANSWER = """vectors => vectors.map(([quotas, quiet, members, asked]) => {
  const rules = {quotas: quotas.map(QuotaRule.parseQuota),
                 quiet: quiet && QuotaRule.parseQuietHours(quiet)};
  const why = QuotaRule.judge(rules, members, asked);
  const spans = QuotaRule.quietSpans(rules.quiet, asked, asked + 1);
  const blocked = rules.quotas.map(each => QuotaRule.spansOf(each, members, asked, asked + 1)
    .some(span => (each.unit ? span.from <= asked : span.from < asked) && asked < span.until));
  return {
    by: why && (why.quiet ? why.quiet.text : why.quota.text),
    run: why ? why.run : [],
    slot: QuotaRule.nextSlot(rules, members, asked),
    drawn: spans.length > 0 || blocked.includes(true),
  };
})"""

Vector = tuple[list[str], str | None, list[int], int]


class Scene:
    """Quotas and quiet hours, and requests at random times: what Redis answers to each."""

    def __init__(self, luck: random.Random, opened: Callable[..., Reserving]) -> None:
        self.luck = luck
        self.step = luck.choice([1, MINUTE, 5 * MINUTE])
        self.span = luck.choice([60, 300]) * self.step
        self.quotas = [self._quota() for _ in range(luck.randint(1, 4))]
        self.quiet = f"{self._clock()}-{self._clock()}" if luck.random() < 0.4 else None
        if self.quiet is not None and self.quiet[:5] == self.quiet[6:]:
            self.quiet = None
        name = f"scene-{luck.random()}"
        self.windows = opened(*map(parse_quota, self.quotas), namespace=name, shards=1).windows
        hours = Hours.parse(self.quiet) if self.quiet else None
        self.terms = Terms((own_scope("ada"),), "UTC", hours)
        self.times: dict[UUID, int] = {}

    def _quota(self) -> str:
        count = self.luck.choice([1, 2, 2, 3, 5, 20])
        if self.luck.random() < 0.3:
            return f"{count}/{self.luck.choice(['minute', 'hour', 'day', 'week', 'month'])} in UTC"
        if self.step == 1:
            return f"{count}/second"
        return f"{count}/{self.luck.choice([1, 7, 30, 60, 300])} minute"

    def _clock(self) -> str:
        return f"{self.luck.randrange(24):02}:{self.luck.choice([0, 15, 59]):02}"

    def ask(self) -> tuple[Vector, dict[str, Any]]:
        """Ask for a time; return the question and the answer. What fits, or its slot, is booked."""
        near = self.luck.choice([*self.times.values(), BASE])
        edge = near + self.luck.choice([-1, 1]) * self.luck.choice(
            [1_000, 30 * MINUTE, 60 * MINUTE]
        )
        spread = BASE + self.luck.randrange(self.span // self.step) * self.step * 9
        asked = self.luck.choice([near, edge, spread, spread])
        vector = (self.quotas, self.quiet, self.members, asked)
        answer: dict[str, Any] = {"by": None, "run": [], "slot": asked, "drawn": False}
        try:
            found = self._book(asked)
        except SlotRefused as refused:
            full = refused.quota if isinstance(refused, QuotaExceeded) else self.quiet
            answer = {"by": full, "run": [], "slot": to_ms(refused.next_slot), "drawn": True}
            if isinstance(refused, QuotaExceeded):
                answer["run"] = sorted(self.times[each] for each in refused.conflicting)
            if self.luck.random() < 0.5:
                self._book(answer["slot"])
        else:
            assert found == asked
        return vector, answer

    @property
    def members(self) -> list[int]:
        return sorted(self.times.values())

    def _book(self, at: int) -> int:
        message_id = new_id()
        booked = reserve(self.windows, message_id, terms=self.terms, send_at=from_ms(at))
        found = to_ms(booked.send_at)
        self.times[message_id] = found
        return found


@pytest.mark.long
@pytest.mark.parametrize("seed", range(2))
def test_the_rule_of_the_site_answers_as_the_windows_do(
    seed: int, opened: Callable[..., Reserving]
) -> None:
    luck = random.Random(seed)  # noqa: S311 - a seed, not a secret
    scenes = [Scene(luck, opened) for _ in range(60)]
    asked = [scene.ask() for scene in scenes for _ in range(REQUESTS)]
    with chromium() as browser:
        page = browser.new_page()
        page.add_script_tag(path=RULE)
        answers = page.evaluate(_ANSWER, [vector for vector, _ in asked])
    for (vector, expected), answer in zip(asked, answers, strict=True):
        assert answer == expected, json.dumps(vector)
    refused = [expected["by"] for _, expected in asked if expected["by"]]
    assert len(asked) >= 800
    assert len(refused) > len(asked) / 5
    assert any(" in UTC" in each for each in refused)
    assert any("-" in each for each in refused)
