"""A cluster: where commands go, and slots and primaries that move while they are used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import redis

from remuda.errors import StoreError, StoreUnavailableError
from remuda.stores.redis.link import Link, Script
from remuda.stores.redis.refusals import RefusedError
from remuda.stores.redis.slots import slot_of, slot_of_command
from tests.redis.links import linked, until_blocked
from tests.redis_servers import RedisCluster, RedisServer, ValkeyServer

COUNT_UP = Script("count_up", "return redis.call('INCR', KEYS[1])")


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (("GET", "a"), "a"),
        ((b"get", b"a"), "a"),
        (("XADD", "{q}:s", "*", "f", "v"), "q"),
        (("XGROUP", "CREATE", "a", "g", "$"), "a"),
        (("XINFO", "STREAM", "a"), "a"),
        (("XREAD", "COUNT", 5, "BLOCK", 100, "STREAMS", "a", "$"), "a"),
        (("XREAD", "streams", "a", "b", "$", "$"), "a"),
        (("XREADGROUP", "GROUP", "streams", "streams", "COUNT", 1, "STREAMS", "a", ">"), "a"),
        (("EVALSHA", "0" * 40, 2, "a", "b", "c"), "a"),
        (("EVAL", "return 1", "1", b"a"), "a"),
    ],
)
def test_a_command_belongs_to_its_first_key(command: tuple[str, ...], key: str) -> None:
    assert slot_of_command(command) == slot_of(key)


@pytest.mark.parametrize("command", [("TIME",), ("scan", "0"), ("EVAL", "return 1", 0), ("SCRIPT", "FLUSH")])
def test_a_command_without_a_key_belongs_anywhere(command: tuple[str, ...]) -> None:
    assert slot_of_command(command) is None


async def test_slots_are_reckoned_as_the_server_does(redis_cluster: RedisCluster) -> None:
    async with linked(redis_cluster.fresh()) as link:
        for key in ("a", "{chasqui:emails}:stream", "{}x", "a{b}c{d}", "a{b", "{{x}}", "ä", "x}{y}"):
            assert await link.call("CLUSTER", "KEYSLOT", key) == slot_of(key)


async def test_queues_are_spread_and_each_lives_on_one_node(redis_cluster: RedisCluster) -> None:
    async with linked(redis_cluster.fresh()) as link:
        assert link.server.mode == "cluster"
        for number in range(30):
            key = f"{{q{number}}}:n"
            assert await link.run(COUNT_UP, [key], []) == 1
            assert await link.call_many([("INCR", key), ("GET", key)]) == [2, b"2"]
        sizes = await link.everywhere("DBSIZE")
        assert len(sizes) == 3
        assert sum(sizes) == 30
        assert all(sizes)


async def test_keys_of_several_slots_are_refused(redis_cluster: RedisCluster) -> None:
    async with linked(redis_cluster.fresh()) as link:
        with pytest.raises(RefusedError) as caught:
            await link.run(COUNT_UP, ["a", "b"], [])
        assert caught.value.code == "CROSSSLOT"


async def test_a_url_of_the_wrong_kind_says_which_is_right(
    redis_cluster: RedisCluster, valkey_server: ValkeyServer
) -> None:
    redis_cluster.fresh()
    valkey_server.fresh()
    with pytest.raises(StoreError, match=r"redis\+cluster://"):
        async with linked(redis_cluster.nodes[0].url()):
            pass
    with pytest.raises(StoreError, match=r"no node of a cluster"):
        async with linked(f"redis+cluster://127.0.0.1:{valkey_server.port}"):
            pass


async def test_one_node_of_the_url_that_answers_is_enough(redis_cluster: RedisCluster) -> None:
    redis_cluster.fresh()
    url = f"redis+cluster://127.0.0.1:1,127.0.0.1:{redis_cluster.nodes[1].port}"
    async with linked(url) as link:
        assert len(await link.everywhere("DBSIZE")) == 3
    with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:2"):
        async with linked("redis+cluster://127.0.0.1:1,127.0.0.1:2"):
            pass


class Migration:
    """The slot of a key on its way from its node to another one."""

    def __init__(self, cluster: RedisCluster, key: str) -> None:
        self.key, self.slot = key, slot_of(key)
        self.source = cluster.node_of(key)
        self.target = next(node for node in cluster.nodes if node is not self.source)
        self._cluster = cluster

    def begin(self) -> None:
        self._set(self.target, "IMPORTING", self._id(self.source))
        self._set(self.source, "MIGRATING", self._id(self.target))

    def move_keys(self) -> None:
        with self.source.client() as client:
            for key in client.execute_command("CLUSTER", "GETKEYSINSLOT", self.slot, 100):
                client.execute_command("MIGRATE", "127.0.0.1", self.target.port, key, 0, 5000)

    def finish(self) -> None:
        for node in (self.target, self.source, *self._cluster.nodes):
            self._set(node, "NODE", self._id(self.target))

    def undo(self) -> None:
        """Bring the slot back, wherever it is, for the next test."""
        with self.target.client() as client:
            client.flushall()
        for node in (self.source, self.target, *self._cluster.nodes):
            with suppress(Exception):
                self._set(node, "STABLE")
            self._set(node, "NODE", self._id(self.source))

    def _set(self, node: RedisServer, *words: str) -> None:
        with node.client() as client:
            client.execute_command("CLUSTER", "SETSLOT", self.slot, *words)

    @staticmethod
    def _id(node: RedisServer) -> str:
        with node.client() as client:
            return str(client.execute_command("CLUSTER", "MYID").decode())


@pytest.fixture
def migration(redis_cluster: RedisCluster) -> Iterator[Migration]:
    redis_cluster.fresh()
    migration = Migration(redis_cluster, "{moving}:n")
    yield migration
    migration.undo()


async def test_a_slot_that_has_moved_is_followed(redis_cluster: RedisCluster, migration: Migration) -> None:
    key = migration.key
    async with linked(redis_cluster.url()) as link:
        await link.run(COUNT_UP, [key], [])
        migration.begin()
        migration.move_keys()
        migration.finish()
        assert await link.run(COUNT_UP, [key], []) == 2
        assert await link.call_many([("INCR", key), ("GET", key)]) == [3, b"3"]
        assert await link.block("XREAD", "STREAMS", "{moving}:s", "0", within=1) is None
        # The map was read anew: nobody has to be redirected any more.
        with migration.source.client() as client:
            client.config_resetstat()
        await link.call("GET", key)
        with migration.source.client() as client:
            assert "errorstat_MOVED" not in client.info("errorstats")


async def test_a_slot_on_the_move_is_served_by_both(
    redis_cluster: RedisCluster, migration: Migration
) -> None:
    key = migration.key
    async with linked(redis_cluster.url()) as link:
        await link.run(COUNT_UP, [key], [])
        migration.begin()
        assert await link.run(COUNT_UP, [key], []) == 2
        assert await link.call("GET", "{moving}:elsewhere") is None
        migration.move_keys()
        assert await link.run(COUNT_UP, [key], []) == 3
        assert await link.call_many([("INCR", key), ("INCR", "{moving}:new"), ("GET", key)]) == [4, 1, b"4"]
        migration.finish()
        assert await link.run(COUNT_UP, [key], []) == 5


async def test_a_slot_that_is_half_moved_is_unavailable(
    redis_cluster: RedisCluster, migration: Migration
) -> None:
    async with linked(redis_cluster.url()) as link:
        await link.call("SET", migration.key, 1)
        migration.begin()
        with pytest.raises(StoreUnavailableError, match="TRYAGAIN"):
            await link.run(COUNT_UP, [migration.key, "{moving}:not yet there"], [])


async def test_who_waits_for_a_slot_that_moves_away_is_told(
    redis_cluster: RedisCluster, migration: Migration
) -> None:
    async with linked(redis_cluster.url(), client_name="waiter") as link:
        read = ("XREAD", "BLOCK", 60_000, "STREAMS", "{moving}:s", "0")
        waiting = asyncio.create_task(link.block(*read, within=60))
        await until_blocked(migration.source, "waiter")
        migration.begin()
        migration.finish()
        # The server answers MOVED, and the command goes on at the new place.
        await until_blocked(migration.target, "waiter")
        await link.call("XADD", "{moving}:s", "1-1", "f", "v")
        assert await waiting == [[b"{moving}:s", [[b"1-1", [b"f", b"v"]]]]]


@pytest.mark.faults
async def test_a_cluster_with_a_hole_is_unavailable_until_it_is_mended(redis_cluster: RedisCluster) -> None:
    key = "{hole}:n"
    async with linked(redis_cluster.fresh()) as link:
        await link.run(COUNT_UP, [key], [])
        home = redis_cluster.node_of(key)
        other = next(node for node in redis_cluster.nodes if node is not home)
        await asyncio.to_thread(other.kill)
        await asyncio.to_thread(_until, lambda: _is_down(home))
        for call in (link.run(COUNT_UP, [key], []), link.call_many([("GET", key)])):
            with pytest.raises(StoreUnavailableError, match="CLUSTERDOWN"):
                await call
        await asyncio.to_thread(redis_cluster.start)
        assert await link.run(COUNT_UP, [key], []) == 2


def _is_down(node: RedisServer) -> bool:
    with node.client() as client:
        return b"cluster_state:fail" in client.execute_command("CLUSTER", "INFO")


@pytest.mark.faults
async def test_a_node_that_is_gone_takes_only_its_own_slots_with_it(redis_cluster: RedisCluster) -> None:
    redis_cluster.fresh()
    with_all_slots = "cluster-require-full-coverage"
    for node in redis_cluster.nodes:
        with node.client() as client:
            client.config_set(with_all_slots, "no")
    gone = redis_cluster.nodes[0]
    keys = [f"{{q{number}}}:n" for number in range(20)]
    homes = {key: redis_cluster.node_of(key) for key in keys}
    async with linked(redis_cluster.url()) as link:
        await asyncio.to_thread(gone.kill)
        for key in keys:
            if homes[key] is gone:
                with pytest.raises(StoreUnavailableError, match=str(gone.port)):
                    await link.run(COUNT_UP, [key], [])
            else:
                assert await link.run(COUNT_UP, [key], []) == 1
        await asyncio.to_thread(redis_cluster.start)
        for key in keys:
            await link.run(COUNT_UP, [key], [])
    for node in redis_cluster.nodes:
        with node.client() as client:
            client.config_set(with_all_slots, "yes")


async def _until_it_counts(link: Link, key: str) -> int:
    async with asyncio.timeout(20):
        while True:
            try:
                return int(await link.run(COUNT_UP, [key], []))
            except StoreUnavailableError:
                await asyncio.sleep(0.02)


@pytest.mark.faults
@pytest.mark.parametrize("orderly", [True, False], ids=["failover", "kill"])
async def test_a_replica_that_takes_over_is_found(orderly: bool) -> None:
    with RedisCluster() as cluster, RedisCluster._node(ValkeyServer, {}) as replica:
        key = "{q}:n"
        primary = cluster.node_of(key)
        await asyncio.to_thread(_follow, cluster, replica, primary)
        async with linked(cluster.url()) as link:
            assert await link.run(COUNT_UP, [key], []) == 1
            assert await link.call_many([("GET", key), ("WAIT", 1, 1000)]) == [b"1", 1]
            await asyncio.to_thread(_take_over, replica) if orderly else primary.kill()
            assert await _until_it_counts(link, key) == 2


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _follow(cluster: RedisCluster, replica: RedisServer, primary: RedisServer) -> None:
    """Make a replica of a primary, and return when every node knows of it."""
    with primary.client() as at_primary, replica.client() as client:
        primary_id = at_primary.execute_command("CLUSTER", "MYID")
        client.execute_command(
            *("CLUSTER", "MEET", "127.0.0.1", primary.port, primary.settings["cluster-port"])
        )

        def follows() -> bool:
            with suppress(redis.ResponseError):  # it does not know the primary yet
                client.execute_command("CLUSTER", "REPLICATE", primary_id)
            return client.info("replication").get("master_link_status") == "up"

        _until(follows)
    _until(lambda: all(_knows_replica(node, replica) for node in cluster.nodes))


def _knows_replica(node: RedisServer, replica: RedisServer) -> bool:
    with node.client() as client:
        lines = client.execute_command("CLUSTER", "NODES").decode().splitlines()
    return any(f":{replica.port}@" in line and "slave" in line for line in lines)


def _take_over(replica: RedisServer) -> None:
    with replica.client() as client:

        def leads() -> bool:
            with suppress(redis.ResponseError):  # it leads already
                client.execute_command("CLUSTER", "FAILOVER")
            return bool(client.info("replication")["role"] == "master")

        _until(leads)
