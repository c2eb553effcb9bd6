"""One server: commands and scripts, and everything that can happen to a connection."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from remuda.errors import ConfigurationError, StoreError, StoreUnavailableError
from remuda.stores.redis.link import Link, Script
from remuda.stores.redis.refusals import Refusal, RefusedError, translate
from remuda.stores.redis.urls import parse
from tests.redis.links import clients, linked, until_blocked, until_gone, with_parameters
from tests.redis_servers import RedisServer, ValkeyServer

SECRET = "hunter2"
ECHO = Script("echo", "return {KEYS[1], ARGV[1]}")
COUNT_UP = Script("count_up", "return redis.call('INCR', KEYS[1])")


@pytest.fixture
async def link(valkey_server: ValkeyServer) -> AsyncIterator[Link]:
    async with linked(valkey_server.fresh()) as link:
        yield link


# -- commands


async def test_replies_are_raw(redis_store_url: str) -> None:
    async with linked(redis_store_url) as link:
        assert await link.call("SET", "{q}:a", b"\xff\x00") == b"OK"
        assert await link.call("GET", "{q}:a") == b"\xff\x00"
        assert await link.call("GET", "{q}:none") is None
        assert await link.call("INCRBY", "{q}:n", 7) == 7
        assert await link.call("HSET", "{q}:h", "f", 1.5, "g", "ä") == 2
        assert await link.call("HGETALL", "{q}:h") == [b"f", b"1.5", b"g", "ä".encode()]


async def test_a_script_runs_whether_the_server_knows_it_or_not(redis_store_url: str) -> None:
    async with linked(redis_store_url) as link:
        await link.everywhere("SCRIPT", "FLUSH")
        assert await link.run(ECHO, ["{q}:k"], [b"\xff"]) == [b"{q}:k", b"\xff"]
        assert await link.run(ECHO, ["{q}:k"], [1]) == [b"{q}:k", b"1"]
        await link.everywhere("SCRIPT", "FLUSH")
        assert await link.run(ECHO, ["{q}:k"], ["x"]) == [b"{q}:k", b"x"]


async def test_a_script_is_sent_whole_only_once(link: Link) -> None:
    await link.call("CONFIG", "RESETSTAT")
    await link.call("SCRIPT", "FLUSH")
    for _ in range(5):
        await link.run(COUNT_UP, ["n"], [])
    info = (await link.call("INFO", "commandstats")).decode()
    assert "cmdstat_eval:calls=1," in info
    assert await link.call("GET", "n") == b"5"


async def test_many_arguments_of_every_kind_arrive(link: Link) -> None:
    joined = Script("joined", "return {#ARGV, ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[#ARGV]}")
    arguments = [b"a" * 3000, "ä", 12, 0.5, *(b"x" * (number % 300) for number in range(7_000)), b""]
    found = await link.run(joined, ["k"], arguments)
    assert found == [7_005, b"a" * 3000, "ä".encode(), b"12", b"0.5", b""]


async def test_an_argument_of_another_kind_is_refused_before_anything_is_sent(link: Link) -> None:
    for arguments in ([None], [True], [{}], [*range(100), None]):
        with pytest.raises(TypeError):
            await link.run(ECHO, ["k"], arguments)  # type: ignore[arg-type]
    assert await link.call("ECHO", "still here") == b"still here"


async def test_several_commands_in_one_round_trip(redis_store_url: str) -> None:
    async with linked(redis_store_url) as link:
        commands = [("SET", "{q}:a", 1), ("INCR", "{q}:a"), ("GET", "{q}:a"), ("LRANGE", "{q}:l", 0, -1)]
        assert await link.call_many(commands) == [b"OK", 2, b"2", []]
        assert await link.call_many([]) == []


async def test_an_error_among_several_commands_is_raised_and_the_rest_was_done(link: Link) -> None:
    with pytest.raises(RefusedError, match="WRONGTYPE") as caught:
        await link.call_many([("SET", "a", 1), ("XADD", "a", "*", "f", "v"), ("INCR", "a")])
    assert caught.value.code == "WRONGTYPE"
    assert await link.call("GET", "a") == b"2"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (("NOSUCH", "x"), "ERR"),
        (("XREADGROUP", "GROUP", "g", "c", "STREAMS", "s", ">"), "NOGROUP"),
        (("EVAL", "return redis.call('GET')", "0"), "ERR"),
    ],
)
async def test_what_a_server_refuses_has_its_code(link: Link, command: tuple[str, ...], code: str) -> None:
    with pytest.raises(RefusedError) as caught:
        await link.call(*command)
    assert caught.value.code == code
    assert not isinstance(caught.value, StoreUnavailableError)


async def test_many_calls_at_the_same_time_use_one_connection(valkey_server: ValkeyServer) -> None:
    async with linked(valkey_server.fresh(), client_name="busy") as link:
        numbers = await asyncio.gather(*(link.run(COUNT_UP, ["n"], []) for _ in range(500)))
        assert sorted(numbers) == list(range(1, 501))
        assert len(clients(valkey_server, "busy")) == 1


async def test_a_reply_larger_than_any_buffer_comes_whole(link: Link) -> None:
    large = b"x" * 5_000_000
    await link.call("SET", "large", large)
    first, second = await asyncio.gather(link.call("GET", "large"), link.call("ECHO", "small"))
    assert first == large
    assert second == b"small"


async def test_everything_that_matches_is_scanned(redis_store_url: str) -> None:
    async with linked(redis_store_url) as link:
        for number in range(50):
            await link.call("SET", f"{{{number}}}:wanted", 1)
            await link.call("SET", f"{{{number}}}:other", 1)
        assert {key async for key in link.scan("*:wanted")} == {b"{%d}:wanted" % n for n in range(50)}


async def test_without_hiredis_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['hiredis'] = None; import remuda.stores.redis.link"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert b"ConfigurationError" in said
    assert b"pip install 'remuda[redis]'" in said


# -- opening and closing


async def test_the_server_is_known_after_opening(
    redis7_server: RedisServer, valkey_server: ValkeyServer
) -> None:
    async with linked(redis7_server.fresh()) as link:
        assert (link.server.kind, link.server.version[:2], link.server.mode) == ("redis", (7, 0), "single")
        assert link.server.features() == ("script flags",)
    async with linked(valkey_server.fresh()) as link:
        assert (link.server.kind, link.server.has_flags) == ("valkey", True)
        assert link.server.version >= (9, 0)
        assert not link.server.has_ackdel


async def test_redis_8_has_what_it_is_known_for(redis8_url: str) -> None:
    async with linked(redis8_url) as link:
        assert link.server.has_ackdel
        assert link.server.has_read_claim
        assert link.server.features() == ("XACKDEL", "XREADGROUP CLAIM", "script flags")


async def test_nothing_is_connected_before_it_is_opened(valkey_server: ValkeyServer) -> None:
    valkey_server.fresh()
    link = Link(parse(with_parameters(valkey_server.url(), client_name="lazy")))
    assert clients(valkey_server, "lazy") == []
    with pytest.raises(StoreError, match="not open"):
        _ = link.server
    await link.close()


async def test_opening_at_the_same_time_connects_once(valkey_server: ValkeyServer) -> None:
    link = Link(parse(with_parameters(valkey_server.fresh(), client_name="opened")))
    servers = await asyncio.gather(*(link.open() for _ in range(20)))
    assert len({id(server) for server in servers}) == 1
    assert len(clients(valkey_server, "opened")) == 1
    await link.close()


async def test_a_cancelled_opening_leaves_the_link_usable(valkey_server: ValkeyServer) -> None:
    link = Link(parse(with_parameters(valkey_server.fresh(), client_name="again")))
    first = asyncio.create_task(link.open())
    second = asyncio.create_task(link.open())
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await second
    assert await link.call("ECHO", "x") == b"x"
    await link.close()
    await until_gone(valkey_server, "again")


async def test_a_call_opens_the_link(valkey_server: ValkeyServer) -> None:
    link = Link(parse(valkey_server.fresh()))
    assert await link.run(ECHO, ["k"], ["v"]) == [b"k", b"v"]
    await link.close()


async def test_closing_gives_every_connection_back_and_ends_what_waits(valkey_server: ValkeyServer) -> None:
    link = Link(parse(with_parameters(valkey_server.fresh(), client_name="closed")))
    await link.open()
    waiting = asyncio.create_task(link.block("XREAD", "BLOCK", 60_000, "STREAMS", "s", "$", within=60))
    await until_blocked(valkey_server, "closed")
    await link.close()
    with pytest.raises(StoreUnavailableError, match="closed"):
        await waiting
    await until_gone(valkey_server, "closed")
    await link.close()
    for call in (link.call("TIME"), link.run(ECHO, ["k"], ["v"]), link.block("TIME", within=1)):
        with pytest.raises(StoreError, match="closed"):
            await call
    with pytest.raises(StoreError, match="closed"):
        await link.open()


async def test_closing_ends_a_call_that_is_still_being_connected() -> None:
    connections: list[asyncio.StreamWriter] = []
    arrived = asyncio.Event()

    async def greet_only_the_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        if len(connections) == 1:
            writer.write(_hello("redis", "7.4.1"))
            await reader.readuntil(b"PING")
            writer.close()
        else:
            arrived.set()

    server = await asyncio.start_server(greet_only_the_first, "127.0.0.1", 0)
    link = Link(parse(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
    async with server:
        with pytest.raises(StoreUnavailableError):
            await link.call("PING")
        calls = [asyncio.create_task(link.call("PING")) for _ in range(2)]
        await arrived.wait()
        await link.close()
        for call in calls:
            with pytest.raises(StoreUnavailableError, match="closed"):
                await call
        for writer in connections:
            writer.close()


async def test_a_server_that_cannot_be_reached_is_unavailable_and_may_be_tried_again(
    valkey_server: ValkeyServer,
) -> None:
    url = valkey_server.fresh()
    valkey_server.stop()
    link = Link(parse(url))
    with pytest.raises(StoreUnavailableError, match=str(valkey_server.port)):
        await link.open()
    valkey_server.start()
    await link.open()
    assert await link.call("ECHO", "x") == b"x"
    await link.close()


@pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "x" * 70])
async def test_a_host_without_an_address_is_an_error_of_ours(host: str) -> None:
    with pytest.raises((StoreUnavailableError, ConfigurationError), match=host[:5]):
        async with linked(f"redis://{host}"):
            pass


async def test_a_port_where_nobody_greets_is_unavailable() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(StoreUnavailableError, match=r"0\.3 s"),
    ):
        async with linked(f"redis://127.0.0.1:{silent.getsockname()[1]}", timeout=0.3):
            pass


async def _answering(text: bytes) -> tuple[asyncio.Server, str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(text)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def _hello(server: str, version: str, mode: str = "standalone") -> bytes:
    words = ["server", server, "version", version, "mode", mode, "role", "master"]
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w.encode()) for w in words)


# Servers that cannot be had here say what those say.
@pytest.mark.parametrize(
    ("greeting", "said"),
    [
        (b"-ERR unknown command `HELLO`, with args beginning with: `2`, \r\n", "older than Redis 6.2"),
        (_hello("redis", "6.0.16"), "Redis 6.0.16, which is too old; Redis 6.2 or Valkey 7.2 is needed"),
        (_hello("valkey", "7.1.9"), "Valkey 7.1.9, which is too old"),
        (_hello("redis", "7.4.1", "sentinel"), "redis\\+sentinel://"),
        (_hello("redis", "7.4.1", "cluster"), "redis\\+cluster://"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not answer like a Redis server"),
        (b"+OK\r\n", "does not answer like a Redis server"),
        (b"*0\r\n", "too old"),
        (b"-DENIED Redis is running in protected mode\r\n", "DENIED"),
    ],
)
async def test_a_server_that_will_not_do_is_refused_with_the_reason(greeting: bytes, said: str) -> None:
    server, url = await _answering(greeting)
    async with server:
        with pytest.raises(StoreError, match=said) as caught:
            async with linked(url):
                pass
    assert not isinstance(caught.value, StoreUnavailableError)


@pytest.mark.parametrize(
    "greeting",
    [b"-ERR max number of clients reached\r\n", b"-LOADING is loading the dataset in memory\r\n", b""],
)
async def test_a_server_that_cannot_answer_just_now_is_unavailable(greeting: bytes) -> None:
    server, url = await _answering(greeting)
    async with server:
        with pytest.raises(StoreUnavailableError):
            async with linked(url):
                pass


@pytest.mark.parametrize("version", ["6.2.0", "7.0.15", "8.6.3", "99.0.0"])
async def test_old_and_new_servers_are_told_apart(version: str) -> None:
    server, url = await _answering(_hello("redis", version))
    link = Link(parse(url))
    async with server:
        found = await link.open()
        await link.close()
    assert found.release == version
    assert found.has_flags == (version != "6.2.0")


# -- who we are


async def test_a_wrong_password_names_the_user_and_not_the_password() -> None:
    with ValkeyServer(password="right", requirepass="right") as server:
        for user in ("", "somebody"):
            with pytest.raises(StoreError, match=user or "default") as caught:
                async with linked(f"redis://{user}:{SECRET}@127.0.0.1:{server.port}"):
                    pass
            assert SECRET not in str(caught.value)
            assert not isinstance(caught.value, StoreUnavailableError)
        with pytest.raises(StoreError, match="NOAUTH"):
            async with linked(f"redis://127.0.0.1:{server.port}"):
                pass
        async with linked(server.url()) as link:
            assert await link.call("ECHO", "x") == b"x"


async def test_a_user_with_few_rights_works_and_what_is_denied_is_refused(
    valkey_server: ValkeyServer,
) -> None:
    valkey_server.fresh()
    with valkey_server.client() as client:
        client.execute_command(
            *("ACL", "SETUSER", "carter", "on", f">{SECRET}", "resetkeys", "~{chasqui:*", "-@all"),
            *("+@stream", "+evalsha", "+eval", "+xread"),
        )
    async with linked(f"valkey://carter:{SECRET}@127.0.0.1:{valkey_server.port}") as link:
        assert await link.call("XADD", "{chasqui:q}:stream", "*", "d", "x")
        with pytest.raises(RefusedError) as caught:
            await link.call("XADD", "elsewhere", "*", "d", "x")
        assert caught.value.code == "NOPERM"
        with pytest.raises(RefusedError):
            await link.call("FLUSHALL")
        with valkey_server.client() as client:
            client.execute_command("ACL", "DELUSER", "carter")
        await until_gone(valkey_server, "remuda")
        with pytest.raises(StoreError, match="'carter'") as refused:
            await link.call("XLEN", "{chasqui:q}:stream")
        assert SECRET not in str(refused.value)


async def test_databases_are_told_apart(valkey_server: ValkeyServer) -> None:
    url = valkey_server.fresh()
    async with linked(url) as first, linked(f"{url}/2") as second:
        await first.call("SET", "a", 1)
        assert await second.call("GET", "a") is None
        assert await second.block("XREAD", "STREAMS", "a", "0", within=1) is None
    with pytest.raises(StoreError, match="DB index"):
        async with linked(f"{url}/999"):
            pass


async def test_a_unix_socket() -> None:
    with ValkeyServer(socket=True) as server:
        async with linked(server.url()) as link:
            assert await link.run(ECHO, ["k"], ["v"]) == [b"k", b"v"]
        server.stop()
        with pytest.raises(StoreUnavailableError):
            async with linked(server.url()):
                pass


async def test_tls(redis_tls_server: RedisServer) -> None:
    async with linked(redis_tls_server.fresh()) as link:
        assert await link.run(ECHO, ["k"], ["v" * 200_000]) == [b"k", b"v" * 200_000]
        assert await link.block("XREAD", "BLOCK", 10, "STREAMS", "s", "$", within=0.1) is None


async def test_a_certificate_that_nobody_vouches_for_is_refused(redis_tls_server: RedisServer) -> None:
    redis_tls_server.fresh()
    url = f"rediss://127.0.0.1:{redis_tls_server.port}"
    with pytest.raises(StoreError, match="certificate") as caught:
        async with linked(url):
            pass
    assert not isinstance(caught.value, StoreUnavailableError)
    async with linked(url, ssl_cert_reqs="none") as link:
        assert await link.call("ECHO", "x") == b"x"
    with pytest.raises(StoreError, match="certificate"):
        async with linked(
            f"rediss://localhost:{redis_tls_server.port}", ssl_ca_certs=redis_tls_server.certificate
        ):
            pass
    with pytest.raises(ConfigurationError, match=r"nothing\.pem"):
        async with linked(url, ssl_ca_certs="/nothing.pem"):
            pass


async def test_tls_where_there_is_none_and_none_where_there_is(
    redis_tls_server: RedisServer, valkey_server: ValkeyServer
) -> None:
    redis_tls_server.fresh()
    valkey_server.fresh()
    with pytest.raises(StoreError):
        async with linked(f"redis://127.0.0.1:{redis_tls_server.port}", timeout=2):
            pass
    with pytest.raises(StoreError):
        async with linked(f"rediss://127.0.0.1:{valkey_server.port}", timeout=2):
            pass


# -- what happens to connections


@pytest.fixture
def name() -> str:
    return "victim"


@pytest.fixture
async def victim(valkey_server: ValkeyServer, name: str) -> AsyncIterator[Link]:
    async with linked(valkey_server.fresh(), client_name=name, timeout=2) as link:
        yield link


def _kill(server: RedisServer, name: str) -> None:
    with server.client() as client:
        for each in client.client_list():
            if each["name"] == name:
                client.execute_command("CLIENT", "KILL", "ID", each["id"])


async def test_a_connection_that_was_cut_while_idle_is_replaced(
    victim: Link, valkey_server: ValkeyServer
) -> None:
    await victim.block("XREAD", "BLOCK", 1, "STREAMS", "s", "$", within=1)
    _kill(valkey_server, "victim")  # without the event loop, which so does not learn of it by itself
    assert await victim.run(COUNT_UP, ["n"], []) == 1
    assert await victim.block("XREAD", "STREAMS", "s", "0", within=1) is None


async def test_a_call_that_is_cut_off_is_not_sent_again(victim: Link, valkey_server: ValkeyServer) -> None:
    slow = Script("slow", "redis.call('INCR', KEYS[1]) for i = 1, 2e7 do end return 1")
    call = asyncio.create_task(victim.run(slow, ["n"], []))
    others = [asyncio.create_task(victim.call("INCR", "m")) for _ in range(3)]
    await asyncio.sleep(0.02)
    await asyncio.to_thread(_kill, valkey_server, "victim")
    outcomes = await asyncio.gather(call, *others, return_exceptions=True)
    for outcome in outcomes:
        assert isinstance(outcome, StoreUnavailableError | int)
    # On a slow machine it may be cut off before it is sent at all.
    assert await victim.call("GET", "n") in ({b"1"} if isinstance(outcomes[0], int) else {b"1", None})
    done = len([each for each in outcomes[1:] if isinstance(each, int)])
    assert int(await victim.call("GET", "m") or 0) >= done


async def test_a_blocking_call_that_is_cut_off_is_unavailable_and_can_be_made_again(
    victim: Link, valkey_server: ValkeyServer
) -> None:
    waiting = asyncio.create_task(victim.block("XREAD", "BLOCK", 60_000, "STREAMS", "s", "$", within=60))
    await until_blocked(valkey_server, "victim")
    _kill(valkey_server, "victim")
    with pytest.raises(StoreUnavailableError):
        await waiting
    again = asyncio.create_task(victim.block("XREAD", "BLOCK", 60_000, "STREAMS", "s", "$", within=60))
    await until_blocked(valkey_server, "victim")
    await victim.call("XADD", "s", "1-1", "f", "v")
    assert await again == [[b"s", [[b"1-1", [b"f", b"v"]]]]]


async def test_blocking_calls_do_not_hold_up_the_others(victim: Link, valkey_server: ValkeyServer) -> None:
    waiting = [
        asyncio.create_task(victim.block("XREAD", "BLOCK", 60_000, "STREAMS", f"s{n}", "$", within=60))
        for n in range(5)
    ]
    await until_blocked(valkey_server, "victim", 5)
    async with asyncio.timeout(5):
        assert await victim.run(COUNT_UP, ["n"], []) == 1
        for number in range(5):
            await victim.call("XADD", f"s{number}", "1-1", "f", "v")
        assert [(await each)[0][0] for each in waiting] == [b"s%d" % number for number in range(5)]
    # Their connections are used again.
    await victim.block("XREAD", "STREAMS", "s0", "0", within=1)
    assert len(clients(valkey_server, "victim")) == 6


async def test_a_cancelled_blocking_call_leaves_nothing_behind(
    victim: Link, valkey_server: ValkeyServer
) -> None:
    await victim.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
    read = ("XREADGROUP", "GROUP", "g", "c", "BLOCK", 60_000, "STREAMS", "s", ">")
    for _ in range(10):
        waiting = asyncio.create_task(victim.block(*read, within=60))
        await until_blocked(valkey_server, "victim")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await until_gone(valkey_server, "victim", left=1)
    # Nobody waits in our name any more: what comes now goes to who really waits.
    await victim.call("XADD", "s", "1-1", "f", "v")
    assert await victim.call("XPENDING", "s", "g") == [0, None, None, None]
    assert await victim.block(*read, within=60) == [[b"s", [[b"1-1", [b"f", b"v"]]]]]


async def test_a_cancelled_call_does_not_confuse_the_next_ones(victim: Link) -> None:
    for _ in range(200):
        cancelled = asyncio.create_task(victim.call("ECHO", "wrong"))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await victim.call("ECHO", "right") == b"right"
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    several = asyncio.create_task(victim.call_many([("ECHO", "a"), ("ECHO", "b")]))
    await asyncio.sleep(0)
    several.cancel()
    assert await victim.run(ECHO, ["k"], ["v"]) == [b"k", b"v"]


@pytest.mark.faults
async def test_a_frozen_server_is_unavailable_after_the_timeout(valkey_server: ValkeyServer) -> None:
    async with linked(valkey_server.fresh(), timeout=0.4) as link:
        await link.block("XREAD", "STREAMS", "s", "0", within=1)
        valkey_server.freeze()
        started = time.monotonic()
        calls = [link.call("INCR", "n"), link.run(COUNT_UP, ["n"], []), link.call_many([("INCR", "n")])]
        blocked = link.block("XREAD", "BLOCK", 100, "STREAMS", "s", "$", within=0.1)
        outcomes = await asyncio.gather(*calls, blocked, return_exceptions=True)
        assert 0.35 < time.monotonic() - started < 3
        for outcome in outcomes:
            assert isinstance(outcome, StoreUnavailableError)
            assert "no answer within" in str(outcome)
        valkey_server.thaw()
        assert await link.call("ECHO", "x") == b"x"


@pytest.mark.faults
async def test_a_frozen_server_does_not_hold_up_closing(valkey_server: ValkeyServer) -> None:
    link = Link(parse(valkey_server.fresh()))
    await link.open()
    valkey_server.freeze()
    call = asyncio.create_task(link.call("SET", "large", b"x" * 30_000_000))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(2):
        await link.close()
    with pytest.raises(StoreUnavailableError):
        await call
    valkey_server.thaw()


@pytest.mark.faults
async def test_commands_too_large_for_a_frozen_server_to_take_end_in_time_too(
    valkey_server: ValkeyServer,
) -> None:
    async with linked(valkey_server.fresh(), timeout=0.5) as link:
        valkey_server.freeze()
        calls = [asyncio.create_task(link.call("SET", f"k{n}", b"x" * 10_000_000)) for n in range(4)]
        await asyncio.sleep(0)
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(outcome, StoreUnavailableError) for outcome in outcomes)
        valkey_server.thaw()
        assert await link.call("ECHO", "x") == b"x"


async def test_an_event_loop_that_stood_still_is_no_reason_to_give_a_server_up(
    valkey_server: ValkeyServer,
) -> None:
    async with linked(valkey_server.fresh(), timeout=0.2) as link:
        call = asyncio.create_task(link.call("ECHO", "x"))
        await asyncio.sleep(0)
        time.sleep(0.4)  # noqa: ASYNC251 - this is what is tested
        assert await call == b"x"


@pytest.mark.faults
async def test_a_server_that_comes_back_is_used_again(valkey_server: ValkeyServer) -> None:
    async with linked(valkey_server.fresh()) as link:
        await link.run(COUNT_UP, ["n"], [])
        waiting = asyncio.create_task(link.block("XREAD", "BLOCK", 60_000, "STREAMS", "s", "$", within=60))
        await until_blocked(valkey_server, "remuda")
        await asyncio.to_thread(valkey_server.kill)
        with pytest.raises(StoreUnavailableError):
            await waiting
        for _ in range(3):
            outcomes = await asyncio.gather(*(link.call("PING") for _ in range(5)), return_exceptions=True)
            assert all(isinstance(outcome, StoreUnavailableError) for outcome in outcomes)
        await asyncio.to_thread(valkey_server.start)
        assert await link.run(COUNT_UP, ["n"], []) == 2


@pytest.fixture
def replica(valkey_server: ValkeyServer) -> Iterator[ValkeyServer]:
    valkey_server.fresh()
    with ValkeyServer() as server:
        server.replica_of(valkey_server)
        yield server


@pytest.mark.faults
async def test_a_replica_cannot_be_written_to_until_it_is_a_primary(replica: ValkeyServer) -> None:
    async with linked(replica.url(), client_name="writer") as link:
        await link.block("XREAD", "STREAMS", "s", "0", within=1)
        [before, _] = sorted(int(each["id"]) for each in clients(replica, "writer"))
        for call in (
            link.call("SET", "a", 1),
            link.run(COUNT_UP, ["n"], []),
            link.call_many([("GET", "a"), ("SET", "a", 1)]),
        ):
            with pytest.raises(StoreUnavailableError, match="READONLY"):
                await call
        await until_gone(replica, "writer")
        replica.replica_of(None)
        assert await link.run(COUNT_UP, ["n"], []) == 1
        [after] = [int(each["id"]) for each in clients(replica, "writer")]
        assert after > before


@pytest.mark.faults
async def test_who_waits_on_a_primary_that_becomes_a_replica_is_told(valkey_server: ValkeyServer) -> None:
    valkey_server.fresh()
    with ValkeyServer() as server:
        async with linked(server.url(), client_name="waiter") as link:
            await link.call("XGROUP", "CREATE", "s", "g", "$", "MKSTREAM")
            waiting = asyncio.create_task(
                link.block("XREADGROUP", "GROUP", "g", "c", "BLOCK", 60_000, "STREAMS", "s", ">", within=60)
            )
            await until_blocked(server, "waiter")
            await asyncio.to_thread(server.replica_of, valkey_server)
            with pytest.raises(StoreUnavailableError):
                await waiting


@pytest.mark.faults
@pytest.mark.parametrize("server_class", [ValkeyServer, RedisServer])
async def test_a_server_out_of_memory_refuses_what_adds_and_runs_what_makes_room(
    server_class: type[RedisServer],
) -> None:
    with server_class(maxmemory="100kb", **{"maxmemory-policy": "noeviction"}) as server:
        async with linked(server.url()) as link:
            added = Script("added", "return redis.call('XADD', KEYS[1], '*', 'f', ARGV[1])")
            emptied = Script("emptied", "redis.call('XADD', KEYS[1], '*', 'f', 'v') return 1", allow_oom=True)
            for call in (
                link.run(added, ["s"], [b"x"]),
                link.call("XADD", "s", "*", "f", "v"),
                link.call_many([("PING",), ("XADD", "s", "*", "f", "v")]),
            ):
                with pytest.raises(StoreUnavailableError, match="OOM"):
                    await call
            assert await link.run(emptied, ["s"], []) == 1


async def test_a_server_that_wants_replicas_and_has_none_is_unavailable() -> None:
    with ValkeyServer(**{"min-replicas-to-write": "1"}) as server:
        async with linked(server.url()) as link:
            with pytest.raises(StoreUnavailableError, match="NOREPLICAS"):
                await link.run(COUNT_UP, ["n"], [])


@pytest.mark.faults
async def test_a_server_that_cannot_save_is_unavailable() -> None:
    with ValkeyServer(save="900 1") as server:
        async with linked(server.url()) as link:
            [_, folder] = await link.call("CONFIG", "GET", "dir")
            in_the_way = os.path.join(folder.decode(), "dump.rdb")
            os.mkdir(in_the_way)
            await link.call("BGSAVE")
            async with asyncio.timeout(10):
                while b"rdb_last_bgsave_status:err" not in await link.call("INFO", "persistence"):
                    pass
            with pytest.raises(StoreUnavailableError, match="MISCONF"):
                await link.run(COUNT_UP, ["n"], [])
            os.rmdir(in_the_way)  # or it would not even stop


@pytest.mark.faults
async def test_a_server_that_is_busy_with_a_script_is_unavailable(valkey_server: ValkeyServer) -> None:
    endless = Script("endless", "while true do end")
    async with linked(valkey_server.fresh()) as link, linked(valkey_server.url()) as other:
        await link.call("CONFIG", "SET", "busy-reply-threshold", 20)
        running = asyncio.create_task(link.run(endless, ["n"], []))
        await asyncio.sleep(0.05)
        with pytest.raises(StoreUnavailableError, match="BUSY"):
            await other.run(COUNT_UP, ["n"], [])
        await other.call("SCRIPT", "KILL")
        with pytest.raises(RefusedError):
            await running
        assert await other.run(COUNT_UP, ["n"], []) == 1
        await link.call("CONFIG", "SET", "busy-reply-threshold", 5000)


# Redis 6.2 cannot be had here; this is how it writes what goes wrong inside a script.
@pytest.mark.parametrize(
    ("text", "code", "later"),
    [
        ("-OOM command not allowed when used memory > 'maxmemory'.", "OOM", True),
        ("-READONLY You can't write against a read only replica.", "READONLY", True),
        ("-WRONGTYPE Operation against a key holding the wrong kind of value", "WRONGTYPE", False),
        ("Script attempted to access nonexistent global variable 'x'", "ERR", False),
    ],
)
def test_an_error_inside_a_script_is_known_on_old_servers_too(text: str, code: str, later: bool) -> None:
    refusal = Refusal(f"ERR Error running script (call to f_6cb0): @user_script:1: {text} ")
    assert refusal.code == code
    assert isinstance(translate(refusal, "redis://host", None), StoreUnavailableError) == later


async def test_uvloop_does_as_well(valkey_server: ValkeyServer) -> None:
    uvloop = pytest.importorskip("uvloop")
    url = valkey_server.fresh()

    async def everything() -> None:
        async with linked(url, client_name="uv", timeout=0.3) as link:
            assert await link.run(ECHO, ["k"], [b"x" * 1_000_000]) == [b"k", b"x" * 1_000_000]
            waiting = asyncio.create_task(
                link.block("XREAD", "BLOCK", 60_000, "STREAMS", "s", "$", within=60)
            )
            await until_blocked(valkey_server, "uv")
            waiting.cancel()
            await asyncio.wait([waiting])
            _kill(valkey_server, "uv")
            assert await link.run(COUNT_UP, ["n"], []) == 1
            call = asyncio.create_task(link.call("ECHO", "x"))
            await asyncio.sleep(0)
            time.sleep(0.5)  # noqa: ASYNC251 - its timers come before what there is to read
            assert await call == b"x"

    await asyncio.to_thread(uvloop.run, everything())


async def test_no_more_connections_are_made_than_allowed(valkey_server: ValkeyServer) -> None:
    async with linked(valkey_server.fresh(), client_name="few", max_connections=2, timeout=0.2) as link:
        first = asyncio.create_task(link.block("XREAD", "BLOCK", 60_000, "STREAMS", "s", "$", within=60))
        await until_blocked(valkey_server, "few")
        with pytest.raises(StoreUnavailableError, match="max_connections"):
            await link.block("XREAD", "STREAMS", "s", "0", within=1)
        assert len(clients(valkey_server, "few")) == 2
        await link.call("XADD", "s", "1-1", "f", "v")
        assert await first
        assert await link.block("XREAD", "STREAMS", "s", "0", within=1)
