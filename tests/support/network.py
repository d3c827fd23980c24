"""Hosts: network namespaces of a test's own, on one switch, that can be cut off.

Nothing of it touches the network of the machine: the switch is a bridge in a namespace of its own,
and no address leads out. It takes root. A guard ends what runs on the hosts and removes them even
when the test run itself is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.requiring import is_required
from tests.support.waiting import wait_until
from tests.support.workplace import guard

_FOLDER = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_CALLERS = "callers"
"""The host of the test itself: there run threads of this process, which nobody may kill."""
_GUARD = """
for each in /run/netns/"$1"-*; do
  name=${each##*/}
  [ "$name" = "$2" ] || ip netns pids "$name" | xargs -r kill -9
  ip netns delete "$name"
done
"""
_NAMED = 'hostname "$0" && mount -t tmpfs tmpfs /dev/shm && exec "$@"'
"""Memory that processes share ends with them: libfaketime leaves its own behind."""


class Host:
    """One network namespace with one line to the switch."""

    def __init__(self, network: str, name: str, number: int) -> None:
        self.name = name
        self.namespace = f"{network}-{name}"
        self.address = f"10.99.0.{number}"
        self.is_cut = False
        self._switch = f"{network}-switch"
        self._port = f"port-{number}"
        _ip("netns", "add", self.namespace)
        line = ("eth0", "netns", self.namespace, "type", "veth", "peer", "name", self._port)
        _ip("link", "add", *line, "netns", self._switch)
        self._inside("link", "set", "lo", "up")
        self._inside("address", "add", f"{self.address}/24", "dev", "eth0")
        self._inside("link", "set", "eth0", "up")
        _ip("-n", self._switch, "link", "set", self._port, "master", "bridge", "up")

    def command(self, *words: str) -> list[str]:
        enter = ("ip", "netns", "exec", self.namespace, "unshare", "--uts")
        return [*enter, "sh", "-c", _NAMED, self.name, *words]

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Let this thread be here: what it starts meanwhile, stays."""
        with Path("/proc/thread-self/ns/net").open() as before:
            _enter(_FOLDER / self.namespace)
            try:
                yield
            finally:
                _set(before.fileno())

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Pull the plug at the switch: packets are lost without a word, connections stay."""
        _ip("-n", self._switch, "link", "set", self._port, "down")
        self.is_cut = True
        try:
            yield
        finally:
            _ip("-n", self._switch, "link", "set", self._port, "up")
            self.is_cut = False

    def cut_for(self, seconds: float) -> None:
        with self.cut():
            until = time.monotonic() + seconds
            wait_until(lambda: time.monotonic() >= until)

    def end_all(self) -> None:
        def none_left() -> bool:
            pids = _ip("netns", "pids", self.namespace).split()
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            return not pids

        wait_until(none_left)

    def _inside(self, *words: str) -> None:
        _ip("-n", self.namespace, *words)


class Network:
    def __init__(self, name: str) -> None:
        self.name = name
        self.hosts: list[Host] = []
        _ip("netns", "add", f"{name}-switch")
        _ip("-n", f"{name}-switch", "link", "add", "bridge", "type", "bridge")
        _ip("-n", f"{name}-switch", "link", "set", "bridge", "up")

    def host(self, name: str) -> Host:
        made = Host(self.name, name, len(self.hosts) + 1)
        self.hosts.append(made)
        return made


@contextmanager
def network() -> Iterator[Network]:
    """Make a switch; meanwhile this thread, and those it starts, are on a host of it. Or skip."""
    if not is_required("netns"):
        pytest.skip("takes root, two minutes and three RabbitMQ: `make test-hosts` runs it")
    name = f"dispatcher-{uuid4().hex[:8]}"
    watch = guard(_GUARD, name, f"{name}-{_CALLERS}")
    try:
        made = Network(name)
        with made.host(_CALLERS).inside():
            yield made
        for host in made.hosts[1:]:
            host.end_all()
    finally:
        watch.communicate()  # it ends and removes what is left


def _ip(*words: str) -> str:
    done = subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
    return done.stdout


def _enter(namespace: Path) -> None:
    with namespace.open() as file:
        _set(file.fileno())


def _set(number: int) -> None:
    # Python has it from 3.12 on.
    if ctypes.CDLL(None, use_errno=True).setns(number, _CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")
