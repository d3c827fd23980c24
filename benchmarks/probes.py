"""Measure what probes cost: CPU seconds of the probed process per 1,000 probes of each path.

The broker and the windows are one Redis, or the broker is the RabbitMQ on 127.0.0.1 where one
listens; the database is PostgreSQL. Each probe is a connection of its own, as Kubernetes makes it.
"""

from __future__ import annotations

import multiprocessing
import socket
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from multiprocessing.connection import Connection

from rounds import facts, folder
from submit import postgres

from dispatcher.app import App
from dispatcher.embedded import embedded
from dispatcher.settings import Settings
from dispatcher.telemetry.liveness import Kind

PROBES = 1_000
RABBITMQ = ("127.0.0.1", 5672)
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


def serve(settings: Settings, line: Connection) -> None:
    """Serve probes; send the port, then the CPU seconds so far at each request for them."""
    app = App(settings)
    health = app.health(Kind.WORKER)
    from dispatcher.telemetry.prometheus import Exposition  # noqa: PLC0415 - in the child alone

    exposition = Exposition(app.overviews.vitals, health, "127.0.0.1", 0, app.clock)
    line.send(exposition.port)
    while line.recv():
        line.send(time.process_time())
    exposition.close()


def cost(settings: Settings, path: str, probes: int) -> tuple[float, int]:
    """Return the CPU seconds of the probed process per 1,000 probes, and the last status."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(settings, theirs))
    process.start()
    url = f"http://127.0.0.1:{ours.recv()}{path}"
    status = 0

    def probe(many: int) -> float:
        nonlocal status
        for _ in range(many):
            try:
                with urllib.request.urlopen(url, timeout=10) as answer:
                    status = answer.status
                    answer.read()
            except urllib.error.HTTPError as error:
                status = error.code
                error.close()
        ours.send(True)
        return float(ours.recv())

    before = probe(20)
    spent = probe(probes) - before
    ours.send(False)
    process.join()
    return spent / probes * 1_000, status


def rabbitmq_listens() -> bool:
    try:
        socket.create_connection(RABBITMQ, timeout=1).close()
    except OSError:
        return False
    return True


def main(probes: int) -> None:
    with folder() as path, embedded(path / "redis") as servers, postgres() as url:
        redis = servers.model_copy(update={"database_url": url})
        rows = {"broker Redis": redis}
        if rabbitmq_listens():
            amqp = "amqp://guest:guest@{}:{}//".format(*RABBITMQ)
            rows["broker RabbitMQ"] = redis.model_copy(update={"broker_url": amqp})
        rows["database refuses"] = redis.model_copy(update={"database_url": NOWHERE})
        print(f"\n### Probes: {probes:,} of each path\n")
        print(f"{datetime.now(UTC):%Y-%m-%d}, {facts()}\n")
        print("| | path | answers | CPU s per 1,000 probes |")
        print("|---|---|---|---|")
        for name, settings in rows.items():
            for each in ("/livez", "/readyz"):
                seconds, status = cost(settings, each, probes)
                print(f"| {name} | `{each}` | {status} | {seconds:.2f} |")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else PROBES)
