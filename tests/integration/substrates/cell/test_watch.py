"""A watch of a tree that a tenant makes as large, and changes as fast, as it can."""

from __future__ import annotations

import asyncio
from pathlib import Path

import dutyfree
from dutyfree.model import FileEventKind

MAX_APPLET_BYTES = 24 * 1024**2
"""8,192 paths and the buffers."""


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def watcher(guest: int) -> int:
    """The process of the only applet that runs in the guest."""
    (child,) = Path(f"/proc/{guest}/task/{guest}/children").read_text().split()
    return int(child)


async def test_more_directories_than_are_watched_are_an_overflow() -> None:
    async with dutyfree.local("cell") as host, host.lease() as box:
        line = "mkdir /tmp/t && cd /tmp/t && seq 9000 | xargs mkdir"
        assert (await box.run(line)).ok
        async with box.files.watch("/tmp/t", recursive=True) as events:
            assert (await anext(aiter(events))).kind is FileEventKind.OVERFLOW
            pid = watcher(box._sandbox.pid or 0)
            assert resident_bytes(pid) < MAX_APPLET_BYTES
            assert (await box.run("cd /tmp/t && seq 9001 12000 | xargs mkdir && echo > end", timeout_s=60)).ok
            async with asyncio.timeout(30):
                async for event in events:
                    if event.path == "/tmp/t/end":
                        break
            assert resident_bytes(pid) < MAX_APPLET_BYTES


async def test_a_tree_deeper_than_paths_can_be_is_an_overflow() -> None:
    deep = "import os\nos.chdir('/tmp/t')\nfor i in range(40):\n    os.mkdir('d' * 200)\n    os.chdir('d' * 200)\n"
    async with dutyfree.local("cell") as host, host.lease() as box:
        await box.run("mkdir /tmp/t")
        async with box.files.watch("/tmp/t", recursive=True) as events:
            assert (await box.run(["python3", "-c", deep])).ok
            async with asyncio.timeout(30):
                async for event in events:
                    if event.kind is FileEventKind.OVERFLOW:
                        break


async def test_a_watch_ends_with_its_process_and_with_its_lease() -> None:
    async with dutyfree.local("cell") as host:
        box = await host.acquire()
        async with box.files.watch("/tmp") as events:
            task = asyncio.ensure_future(anext(aiter(events)))
            await asyncio.sleep(0.1)
            await box.close()
            failed = (await asyncio.gather(task, return_exceptions=True))[0]
        assert isinstance(failed, dutyfree.LeaseLost)


def test_the_client_without_await_watches() -> None:
    with dutyfree.sync.local("cell") as host, host.lease() as box, box.files.watch("/tmp") as events:
        box.files.write("/tmp/a", b"1")
        assert any(event.path == "/tmp/a" for event in events)
