"""The RabbitMQ that runs on this machine with queues of a test's own on it, and a cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest
from kombu import Connection, Exchange, Queue

from tests.support.environment import CHANNEL
from tests.support.network import Host
from tests.support.requiring import missing
from tests.support.servers import Server
from tests.support.waiting import wait_until

ADDRESS = ("127.0.0.1", 5672)
PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""What Debian's command runs, without its change of the user."""


def url_at(address: tuple[str, int] = ADDRESS) -> str:
    return f"amqp://guest:guest@{address[0]}:{address[1]}//"


@pytest.fixture
def rabbitmq() -> str:
    """Give the URL of a RabbitMQ, or skip."""
    return _found()


@pytest.fixture
def own_queue() -> Iterator[str]:
    """Give a name that no other queue has; what is declared under it is deleted. Or skip."""
    with queue_of_own() as name:
        yield name


@contextmanager
def queue_of_own() -> Iterator[str]:
    url = _found()
    name = f"dispatcher-test-{uuid4().hex}"
    yield name
    with Connection(url) as connection:
        for queue in (name, f"{name}.{CHANNEL}", f"{name}.memory"):
            for kind in (Queue, Exchange):
                with suppress(*connection.channel_errors), connection.channel() as channel:
                    kind(queue, channel=channel).delete()


def _found() -> str:
    try:
        socket.create_connection(ADDRESS, timeout=2).close()
    except OSError as error:
        missing("rabbitmq", f"no RabbitMQ on {ADDRESS[0]}:{ADDRESS[1]} ({error})")
    return url_at()


class RabbitMQNode(Server):
    """A node of a cluster, on a host of its own."""

    def __init__(self, host: Host, others: Sequence[RabbitMQNode]) -> None:
        super().__init__("dispatcher-rabbitmq-", host)
        self.at = host
        self._nodes = [*others, self]

    @property
    def name(self) -> str:
        return f"rabbit@{self.at.address}"

    @property
    def url(self) -> str:
        return url_at((self.at.address, ADDRESS[1]))

    def knows(self, other: RabbitMQNode) -> bool:
        log = self.folder / "logs" / f"{self.name}.log"
        return log.exists() and f"rabbit on node '{other.name}' up" in log.read_text()

    def _launch(self, log: int) -> subprocess.Popen[bytes]:
        settings = {
            "loopback_users": "none",
            "cluster_partition_handling": "pause_minority",
            "cluster_formation.peer_discovery_backend": "classic_config",
            **{
                f"cluster_formation.classic_config.nodes.{number}": node.name
                for number, node in enumerate(self._nodes)
            },
        }
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (self.folder / "rabbitmq.conf").write_text("".join(lines))
        (self.folder / "plugins").write_text("[].\n")
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(f"{self.at.namespace.rpartition('-')[0]}")
            cookie.chmod(0o400)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("RABBITMQ_")}
        return subprocess.Popen(
            [PROGRAM],
            env={
                **inherited,
                "HOME": str(self.folder),
                "RABBITMQ_USE_LONGNAME": "true",
                "RABBITMQ_NODENAME": self.name,
                "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
                "RABBITMQ_CONF_ENV_FILE": "/dev/null",
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
                "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
                "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
                "RABBITMQ_PID_FILE": str(self.folder / "pid"),
                # Two cores are shared with all others: one scheduler, which does not spin. Nodes
                # notice one that is cut off after 6 to 10 s; by default after 45 to 75 s, and what
                # changes the cluster's metadata may wait as long.
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                    "+S 1:1 +sbwt none +sbwtdcpu none -kernel net_ticktime 8"
                ),
            },
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def _answers(self) -> bool:
        self._check_alive()
        try:
            socket.create_connection((self.at.address, ADDRESS[1]), timeout=2).close()
        except OSError:
            return False
        return True

    def _end(self, how: signal.Signals) -> None:
        super()._end(how)
        self.at.end_all()  # the program has children, and the port mapper leaves every group


@contextmanager
def cluster_on(hosts: Sequence[Host]) -> Iterator[list[RabbitMQNode]]:
    """Start a node on each host; they form a cluster. Or skip."""
    if not PROGRAM.exists():
        missing("netns", f"no RabbitMQ: {PROGRAM} is missing")
    nodes: list[RabbitMQNode] = []
    with ExitStack() as stack:
        for host in hosts:
            nodes.append(stack.enter_context(RabbitMQNode(host, nodes)))
        first, *others = nodes
        wait_until(lambda: all(first.knows(other) for other in others))
        yield nodes
