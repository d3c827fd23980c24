"""The clusters of tests do what tests ask of them."""

from __future__ import annotations

import pytest

from tests.support.cluster import QUICK_MS, slot_of, three_masters
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long
KEY = "{tag}:key"


def test_a_slot_moves_with_its_keys_also_when_a_takeover_interrupts_it() -> None:
    with three_masters(node_timeout_ms=QUICK_MS) as cluster, cluster.client() as client:
        client.set(KEY, "kept")
        slot = slot_of(KEY)
        source = cluster.master_of(slot)
        to = cluster.elsewhere(source)
        cluster.begin_move(slot, to)
        cluster.replica_of(source).command("CLUSTER", "FAILOVER", "TAKEOVER")
        wait_until(lambda: cluster.master_of(slot) is not source)
        cluster.mend()
        assert cluster.is_whole
        assert client.get(KEY) == b"kept"
        cluster.move_slot(slot, cluster.elsewhere(cluster.master_of(slot)))
        assert client.get(KEY) == b"kept"
