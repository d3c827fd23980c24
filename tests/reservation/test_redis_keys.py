"""Key names: one hash tag for what a script touches together, the same in every process."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from dispatcher.redis.keys import PermitKeys, ShardKeys, all_of, shard_of, start_of


def tag(key: str) -> str:
    """Return what Redis Cluster hashes of a key."""
    start = key.index("{")
    return key[start + 1 : key.index("}", start + 1)]


@pytest.mark.parametrize("scope", ["ann", "{other}", "}{", "", "a:b", "利用者"])
def test_all_keys_of_a_shard_share_one_hash_tag(scope: str) -> None:
    keys = ShardKeys("name", 3)
    names = [keys.epoch, keys.rebuild, keys.pending, keys.window(scope), keys.duplicates(scope)]
    assert {tag(name) for name in names} == {"name:3"}
    assert len(set(names)) == len(names)


def test_a_key_never_shows_the_idempotency_key() -> None:
    assert "secret" not in ShardKeys("name", 0).duplicates("secret")


def test_a_shard_is_the_same_in_every_process() -> None:
    known = [shard_of(scope, 16) for scope in ("ann", "+4915112345678", "利用者", "")]
    assert known == [3, 9, 4, 0], "another hash would lose every window that exists"


@pytest.mark.parametrize("namespace", ["plain", "with.dot", "under_score-dash"])
def test_a_scan_finds_the_windows_and_logs_of_its_namespace_alone(namespace: str) -> None:
    shard, permits = ShardKeys(namespace, 1), PermitKeys(namespace, 1)
    for keys, name in ((shard, shard.window("a:b")), (permits, permits.scope("a:b"))):
        assert fnmatchcase(name, all_of(namespace))
        assert start_of(name.encode()) == keys.contents.encode()
    for other in (ShardKeys(namespace, 11), ShardKeys(namespace + "x", 1), ShardKeys("x", 1)):
        assert start_of(other.window("ann").encode()) != shard.contents.encode()
    assert not fnmatchcase(ShardKeys(namespace + "x", 1).window("ann"), all_of(namespace))
    for name in (shard.epoch, shard.rebuild, shard.pending, permits.epoch):
        assert start_of(name.encode()) not in {shard.contents.encode(), permits.contents.encode()}
