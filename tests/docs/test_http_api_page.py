"""docs/http-api.md: its calls by curl get the answers that it names, and it names every call."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dispatcher import errors
from dispatcher.problems import problem_kind_of
from dispatcher.times.clock import SystemClock
from dispatcher.web import api, bounds
from dispatcher.web.access import Right
from dispatcher.web.keys import ApiKeys
from tests.docs.pages import blocks, page
from tests.support.environment import child_environment
from tests.support.house import House
from tests.support.house_fixtures import Build, on_postgresql, on_sqlite
from tests.support.nodes import free_port
from tests.support.processes import command_line, ran
from tests.support.waiting import wait_until

PAGE = page("docs/http-api.md")
CURL = shutil.which("curl")
TYPESCRIPT = """\
const api = process.env.API, key = process.env.KEY;
%s
console.log(JSON.stringify([answer.status, result]));
"""
"""A snippet without types is JavaScript, too, which every Node runs."""
GO_PROGRAM = """\
package main

import ("io"; "net/http"; "os"; "strings")

func main() {
	api, key, message := os.Getenv("API"), os.Getenv("KEY"), os.Getenv("MESSAGE")
%s
	if err != nil { panic(err) }
	body, _ := io.ReadAll(answer.Body)
	os.Stdout.WriteString("[" + answer.Status[:3] + "," + string(body) + "]")
}
"""


@pytest.fixture
def served(build: Build, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Serve the API as the page does; give the variables of its shell."""
    house: House = build(
        clock=SystemClock(),
        channels={"sms": {"transport": "memory"}},
        max_horizon="40000 days",
        events_kept=1_000,
    )
    _, token = ApiKeys(house.parts.database).add("shop")
    port = free_port()
    server = command_line(
        ["serve", "--port", str(port)],
        tmp_path / "serve.log", tmp_path, child_environment(house.settings),
    )  # fmt: skip
    try:
        wait_until(lambda: answers(port))
        yield {"API": f"http://127.0.0.1:{port}", "KEY": token}
    finally:
        server.terminate()
        server.join()


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def shell(block: str, **variables: str) -> Any:
    done = ran("sh", "-c", block, env=variables, check=True, timeout=30)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(CURL is None, reason="curl is not installed")
@on_postgresql
def test_the_calls_of_the_page_get_the_answers_it_names(served: dict[str, str]) -> None:
    calls = [block for block in blocks(PAGE, "sh") if "curl" in block]
    submit, refused, change, listen, batch = calls
    served["PATH"] = str(Path(CURL or "").parent) + ":/usr/bin:/bin"
    listener = subprocess.Popen(["sh", "-c", f"exec {listen}"], env=served, stdout=subprocess.PIPE)
    with listener as listening:
        assert listening.stdout is not None
        assert next(listening.stdout).startswith(b"retry: ")
        [message] = shell(submit, **served)
        lines = (line.decode().rstrip().partition(": ") for line in listening.stdout)
        for _ in range(2):  # the id from which it listens, then an event
            heard = {name: value for name, _, value in iter(partial(next, lines), ("", "", ""))}
        listening.terminate()
    assert heard["event"] == "scheduled"
    assert json.loads(heard["data"])["message_id"] == message["id"]
    assert message["status"] == "scheduled"
    assert shell(submit, **served) == [message]
    [problem] = shell(refused, **served)
    [told] = map(json.loads, blocks(PAGE, "json"))
    assert set(problem) == set(told)
    for name in ("type", "title", "status", "quota", "scope", "send_at", "next_slot"):
        assert problem[name] == told[name]
    headers = shell_headers(message["id"], served)
    changed = shell(change, ID=message["id"], ETAG=headers["etag"], **served)
    assert changed[0]["body"] == {"text": "See you at 10"}
    assert shell(change, ID=message["id"], ETAG=headers["etag"], **served)[0]["status"] == 412
    verdicts = shell(batch, **served)
    assert [(each["number"], each["status"]) for each in verdicts] == [(0, 201), (1, 409)]


def snippet(language: str) -> str:
    [found] = re.findall(rf"^ +```{language}\n(.*?)^ +```$", PAGE, re.DOTALL | re.MULTILINE)
    return textwrap.dedent(found)


PROGRAMS = {
    "ts": ("node", [], "submit.mjs", TYPESCRIPT),
    "go": ("go", ["run"], "submit.go", GO_PROGRAM),
}
"""By language: what runs it, by which words, and the program around the snippet."""


@pytest.mark.long
@on_sqlite
@pytest.mark.parametrize("language", PROGRAMS)
def test_a_snippet_submits_one_message_however_often(
    served: dict[str, str], tmp_path: Path, language: str
) -> None:
    tool, words, name, program = PROGRAMS[language]
    path = shutil.which(tool)
    if path is None:
        pytest.skip(f"{tool} is not installed")
    (tmp_path / name).write_text(program % snippet(language))
    draft = {"channel": "sms", "recipient": "ada", "body": {"text": "hi"}, "send_in_seconds": 9}
    more = {"MESSAGE": json.dumps(draft), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = [ran(path, *words, tmp_path / name, env=served | more, timeout=120) for _ in range(2)]
    assert [each.returncode for each in done] == [0, 0], done[0].stderr
    [(status, message), again] = [json.loads(each.stdout.splitlines()[-1]) for each in done]
    assert (status, message["status"]) == (201, "scheduled")
    assert again == [status, message]


def shell_headers(message_id: str, served: dict[str, str]) -> dict[str, str]:
    command = (
        f'curl -sS -D - -o /dev/null $API/v1/messages/{message_id} -H "Authorization: Bearer $KEY"'
    )
    done = ran("sh", "-c", command, env=served, check=True, timeout=30)
    lines = (line.partition(": ") for line in done.stdout.splitlines() if ": " in line)
    return {name.lower(): value for name, _, value in lines}


def test_the_page_names_every_call_right_and_type(house: House) -> None:
    table = PAGE.split("## Calls")[1].split("\n### ")[0]
    for path in api(house.dispatcher).openapi()["paths"]:
        named = path.replace("{message_id}", "{id}")
        assert named in table or f"`/{named.rpartition('/')[2]}`" in table
    for right in Right:
        assert f"`{right}`" in PAGE
    types = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", PAGE.split("## Errors")[1].split("##")[0]))
    known = {problem_kind_of(each) for each in vars(errors).values() if isinstance(each, type)}
    of_api = {"too-large", "unsupported-media-type", "no-events", "too-slow"}
    of_api |= {"no-such-path", "method-not-allowed", "internal-error"}
    of_api |= {f"too-many-{each}" for each in bounds.MOST}
    assert of_api <= types <= known | of_api
