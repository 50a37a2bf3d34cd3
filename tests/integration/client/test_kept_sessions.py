"""Kept sessions of boxes, over cells: shells that outlive their caller."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree import sync
from dutyfree.background import sessions


@pytest.fixture
async def host() -> AsyncIterator[dutyfree.LocalHost]:
    async with dutyfree.local(substrate="cell") as host:
        yield host


@pytest.fixture
async def box(host: dutyfree.LocalHost) -> AsyncIterator[dutyfree.Box]:
    async with host.lease() as leased:
        yield leased


async def test_a_session_is_found_again_through_another_box_of_the_lease(
    host: dutyfree.LocalHost, box: dutyfree.Box
) -> None:
    async def begin() -> None:
        session = await box.keep_session("main", cwd="/tmp", env={"COLOUR": "red"})
        await session.run("word=kept")

    await asyncio.create_task(begin())
    again = await (await host.get(box.lease.id)).kept_session("main")
    assert again.alive
    assert (await again.run("echo $word $COLOUR; pwd")).text == "kept red\n/tmp\n"


async def test_a_cancelled_line_ends_and_its_session_goes_on(box: dutyfree.Box) -> None:
    session = await box.keep_session("main")
    await session.run("word=kept")
    line = asyncio.create_task(session.run("sleep 1000"))
    await asyncio.sleep(0.1)
    line.cancel()
    with pytest.raises(asyncio.CancelledError):
        await line
    assert (await (await box.kept_session("main")).run("echo $word", timeout_s=20)).text == "kept\n"


async def test_another_caller_interrupts_the_line_that_runs(host: dutyfree.LocalHost, box: dutyfree.Box) -> None:
    session = await box.keep_session("main")
    line = asyncio.create_task(session.run("sleep 1000", timeout_s=60))
    await asyncio.sleep(0.1)
    await (await (await host.get(box.lease.id)).kept_session("main")).interrupt()
    assert (await line).exit_code == 130


async def test_names_are_unique_until_their_session_is_closed(box: dutyfree.Box) -> None:
    with pytest.raises(dutyfree.InvalidRequest, match="no session 'main'"):
        (await box.kept_session("main"))
    first, second = await asyncio.gather(box.keep_session("main"), box.keep_session("main"), return_exceptions=True)
    assert isinstance(second, dutyfree.InvalidRequest)
    assert not isinstance(first, BaseException)
    await first.run("word=first")
    await (await box.kept_session("main")).close()
    assert not first.alive
    with pytest.raises(dutyfree.SessionEnded):
        await first.run("true")
    with pytest.raises(dutyfree.InvalidRequest):
        (await box.kept_session("main"))
    again = await box.keep_session("main")
    assert (await again.run("echo [$word]")).text == "[]\n"


async def test_a_shell_that_exits_frees_its_name(box: dutyfree.Box) -> None:
    session = await box.keep_session("main")
    assert (await session.run("exit 3")).exit_code == 3
    with pytest.raises(dutyfree.InvalidRequest):
        (await box.kept_session("main"))
    assert (await (await box.keep_session("main")).run("true")).ok


async def test_a_session_that_cannot_be_opened_takes_no_name(box: dutyfree.Box) -> None:
    with pytest.raises(dutyfree.InvalidRequest, match="/missing"):
        await box.keep_session("main", cwd="/missing")
    assert (await (await box.keep_session("main")).run("true")).ok


@pytest.mark.parametrize("name", ["", "n" * 129, 7])
async def test_names_are_text_of_bounded_length(box: dutyfree.Box, name: str) -> None:
    with pytest.raises(dutyfree.InvalidRequest, match="name of a session"):
        await box.keep_session(name)
    with pytest.raises(dutyfree.InvalidRequest, match="name of a session"):
        (await box.kept_session(name))


async def test_the_number_of_sessions_is_bounded(box: dutyfree.Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    first, _ = await box.keep_session("1"), await box.keep_session("2")
    with pytest.raises(dutyfree.CapacityError):
        await box.keep_session("3")
    await first.close()
    await box.keep_session("3")


async def test_a_reset_ends_sessions(box: dutyfree.Box) -> None:
    session = await box.keep_session("main")
    await box.reset()
    assert not session.alive
    with pytest.raises(dutyfree.InvalidRequest):
        (await box.kept_session("main"))
    assert (await (await box.keep_session("main")).run("true")).ok


@pytest.mark.parametrize("pool", [None, dutyfree.PoolOptions(sandboxes=1)], ids=["cold", "pool"])
async def test_sessions_end_with_their_lease(pool: dutyfree.PoolOptions | None) -> None:
    async with dutyfree.local(substrate="cell", pool=pool) as host:
        async with host.lease() as box:
            session = await box.keep_session("main")
        assert not session.alive
        with pytest.raises(dutyfree.LeaseLost):
            await session.run("true")
        with pytest.raises(dutyfree.LeaseLost):
            (await box.kept_session("main"))
        async with host.lease() as other:
            with pytest.raises(dutyfree.InvalidRequest):
                (await other.kept_session("main"))


async def test_a_fork_has_no_session_of_its_parent(box: dutyfree.Box) -> None:
    session = await box.keep_session("main")
    (fork,) = await box.fork(1)
    with pytest.raises(dutyfree.InvalidRequest):
        (await fork.kept_session("main"))
    own = await fork.keep_session("main")
    await own.close()
    assert (await session.run("true")).ok


async def test_lines_are_logged(box: dutyfree.Box, tmp_path: Path) -> None:
    await box.keep_session("main")
    await box.log_to(tmp_path / "log")
    await (await box.kept_session("main")).run("echo seen")
    assert "1| seen" in (tmp_path / "log").read_text()


def test_without_await() -> None:
    with sync.local(substrate="cell") as host, host.lease() as box:
        session = box.keep_session("main")
        session.run("word=kept")
        assert host.get(box.lease.id).kept_session("main").run("echo $word").text == "kept\n"
        session.close()
        with pytest.raises(dutyfree.InvalidRequest):
            box.kept_session("main")
