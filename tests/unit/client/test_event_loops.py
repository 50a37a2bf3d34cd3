"""Hosts and boxes on an event loop that is not theirs: an error at once, where calls would hang or stall."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import dutyfree
from dutyfree import sync

AT_ONCE_S = 5.0


def in_another_thread(work: Callable[[], Awaitable[object]]) -> None:
    """The same from a thread that has no loop."""
    with ThreadPoolExecutor(1) as threads:
        threads.submit(in_another_loop, work).result()


def in_another_loop(work: Callable[[], Awaitable[object]]) -> object:
    """Run it on the event loop of another thread, in bounded time."""

    async def bounded() -> object:
        async with asyncio.timeout(AT_ONCE_S):
            return await work()

    return asyncio.run(bounded())


async def test_a_box_in_the_loop_of_another_thread() -> None:
    async def shell(box: dutyfree.Box) -> None:
        async with box.session() as session:
            await session.run("true")

    async with dutyfree.local("process") as host, host.lease() as box:
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: box.run("true"),
            lambda: box.files.read("/etc/passwd"),
            lambda: shell(box),
            lambda: box.stream("true").wait(),
            host.acquire,
        ]
        for call in calls:
            with pytest.raises(dutyfree.InvalidRequest, match="of another event loop"):
                await asyncio.to_thread(in_another_loop, call)
        assert (await box.run("echo fine")).text == "fine\n"


def test_a_host_in_a_second_run() -> None:
    async def open_host() -> tuple[dutyfree.LocalHost, dutyfree.Box]:
        host = await dutyfree.local("process").__aenter__()
        return host, await host.acquire()

    with asyncio.Runner() as first:
        host, box = first.run(open_host())
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: box.run("true"),
            host.acquire,
            lambda: host.__aexit__(None, None, None),
        ]
        for call in calls:
            with pytest.raises(dutyfree.InvalidRequest, match="of another event loop"):
                in_another_thread(call)
        first.run(host.__aexit__(None, None, None))


async def test_sync_objects_work_in_every_thread() -> None:
    def work() -> str:
        with sync.local("process") as host, host.lease() as box:
            return box.run("echo fine").text

    assert await asyncio.to_thread(work) == "fine\n"
