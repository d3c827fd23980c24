"""What a stranger may write into an address ends in an answer, never in a failure."""

from __future__ import annotations

import re
from datetime import timedelta
from itertools import product

import pytest

from tests.support.house import FAR, House
from tests.web.conftest import ON_SQLITE
from tests.web.pages.conftest import Visit

pytestmark = ON_SQLITE

VALUES = (
    "%00", "%ed%a0%80", "%F0%9F%92%A9", "x" * 2_000, "'\"<script>alert(1)</script>", "-1",
    "0001-01-01T00:00", "9999-12-31T23:59", "24:00", "2026-02-30", "2026-03-01T10:00%2B99:99",
    "//[", "01a209db-c66a-75f8-8347-388b3765dff1", "a%2F..%2Fb", "1e999",
)  # fmt: skip
NAMES = {
    "/calendar": ("recipient", "channel", "zone", "start", "view", "at", "done"),
    "/messages": ("status", "channel", "recipient", "scope", "key", "from", "until", "zone",
                  "overdue", "after", "order", "made_after", "done"),
    "/messages/bulk": ("do", "status", "from", "zone"),
    "/campaigns": ("campaign", "after", "done"),
    "/suppressions": ("recipient", "done"),
    "/held": ("channel", "zone", "done", "many"),
    "/": ("done", "many", "refused", "zone"),
    "/sign-in": ("to",),
}  # fmt: skip


@pytest.mark.parametrize("path", NAMES)
def test_no_query_breaks_a_page(house: House, visit: Visit, path: str) -> None:
    house.submit(send_at=FAR + timedelta(hours=1))
    client = visit()
    base = {"/calendar": "recipient=ada&channel=memory", "/messages/bulk": "do=cancel"}
    pairs = product(enumerate(NAMES[path]), enumerate(VALUES))
    for name, value in [(n, v) for (i, n), (j, v) in pairs if (i + j) % 2 == 0]:
        given = "&".join(filter(None, [base.get(path, ""), f"{name}={value}"]))
        answer = client.get(f"{path}?{given}")
        assert answer.status_code < 500, f"{path}?{given}"
        assert "<script>alert" not in answer.text


def test_no_redirect_leads_where_a_host_or_a_path_says(house: House, visit: Visit) -> None:
    client = visit()
    client.follow_redirects = False
    for path in ("/messages/", "/messages//", "//evil.example/", "/\\evil.example/"):
        location = client.get(path, headers={"Host": "evil.example"}).headers.get("location", "/")
        assert re.fullmatch(r"/(?![/\\]).*", location), path
    assert client.get("/messages/?channel=memory").headers["location"] == "/messages?channel=memory"


def test_no_id_breaks_a_page(visit: Visit) -> None:
    client = visit()
    for value in VALUES:
        assert client.get(f"/messages/{value}").status_code in (200, 400, 404, 422), value


def test_no_form_breaks_a_page(house: House, visit: Visit) -> None:
    message = house.submit(send_at=FAR + timedelta(hours=1))
    client = visit()
    for value in ("", "x" * 2_000, "\x00", "١-٢-٣-٤-scheduled", "9999-12-31T23:59", "-1", "1" * 30):
        entered = client.post("/sign-in", data={"key": "x", "to": f"//[{value}"})
        assert entered.status_code < 500
        for path in (f"/messages/{message.id}/reschedule", f"/messages/{message.id}/drop",
                     "/messages/bulk", "/suppressions", "/suppressions/revoke"):  # fmt: skip
            form = dict.fromkeys(
                ("version", "send_at", "zone", "reason", "many", "last", "once", "recipient",
                 "channel", "later"), value,
            ) | {"do": "reschedule"}  # fmt: skip
            assert client.post(path, data=form).status_code < 500, path
    big = client.post("/suppressions", data={"recipient": "x" * 100_000})
    assert big.status_code == 413
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    odd = client.post("/suppressions", content=b"recipient=ad%FFa", headers=form)
    assert (odd.status_code, [*house.dispatcher.suppressed("ad\ufffda")]) == (400, [])
