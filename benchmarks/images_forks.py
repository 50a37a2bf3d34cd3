"""What it costs to multiply a sandbox: time, disk and memory, before anyone writes."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from cells import Study, processes, progress, pss_bytes, since_ms
from dutyfree.client.box import Box
from dutyfree.model import Image
from images_study import KINDS, PAUSE_S, TMPFS, Bench, Contender, write_megabytes

COUNTS = (1, 8, 64)
CHANGED_MB = 200
AT_ONCE = 8
"""How many sandboxes a fork makes at the same time."""
SETTLED_S = 0.5
MEMORY = ("AnonPages", "Shmem", "Slab", "KernelStack", "PageTables", "Percpu")
"""What cannot be read from a disk again."""


async def studies(bench: Bench, image: Image) -> list[Study]:
    """Forks beside as many creates from the same image."""
    found = []
    for count in COUNTS:
        one_by_one = f"create {count}, one after the other"
        contenders = {
            one_by_one: _creates(bench, image, count, 1),
            f"create {count}, {AT_ONCE} at once": _creates(bench, image, count, AT_ONCE),
            f"fork({count})": _fork(bench, image, count),
        }
        title = f"fork({count}) of a sandbox with the attrs image and {CHANGED_MB} MB of changes, {TMPFS.title}"
        blocks = bench.blocks(10, 3)
        found.append(await bench.interleave(title, one_by_one, contenders, blocks, warm_up=1))
    return found


def _creates(bench: Bench, image: Image, count: int, at_once: int) -> Contender:
    async def measure() -> float:
        async with AsyncExitStack() as stack:
            waiting = iter(range(count))

            async def worker() -> None:
                for _ in waiting:
                    await stack.enter_async_context(bench.box(TMPFS, image))

            await asyncio.sleep(PAUSE_S)
            start = time.perf_counter()
            await asyncio.gather(*(worker() for _ in range(at_once)))
            return since_ms(start)

    return measure


def _fork(bench: Bench, image: Image, count: int) -> Contender:
    async def measure() -> float:
        async with bench.box(TMPFS, image) as box:
            await write_megabytes(box, CHANGED_MB)
            await asyncio.sleep(PAUSE_S)
            start = time.perf_counter()
            await box.fork(count)
            return since_ms(start)

    return measure


async def additions(bench: Bench, image: Image, directory: Path) -> list[dict[str, Any]]:
    """What `fork(n)` adds to the disk and to the memory in use, by kind of upper."""
    rows = []
    for kind in KINDS:
        for count in COUNTS[-1:] if bench.quick else COUNTS:
            progress(f"what fork({count}) adds, {kind.title}")
            async with bench.box(kind, image) as box:
                await write_megabytes(box, CHANGED_MB)
                rows.append({"upper": kind.title, "forks": count, **await _added(box, count, directory)})
    progress("")
    return rows


async def _added(box: Box, count: int, directory: Path) -> dict[str, float]:
    before = await _in_use(directory)
    await box.fork(count)
    after = await _in_use(directory)
    return {f"{name}_mb": (after[name] - before[name]) / 1e6 for name in before}


async def _in_use(directory: Path) -> dict[str, int]:
    """By everybody on this machine, where it is about memory or the whole file system."""
    os.sync()  # what was written before is on the disk, and counted, by now
    await asyncio.sleep(SETTLED_S)
    space = os.statvfs(directory)
    return {
        "files": _files_bytes(directory),
        "disk": (space.f_blocks - space.f_bfree) * space.f_frsize,
        "memory": sum(_memory_kib(name) for name in MEMORY) * 1024,
        "pss": sum(pss_bytes(int(pid)) for pid, text in processes() if "dutyfree-" in text),
    }


def _files_bytes(directory: Path) -> int:
    """What the disk gives to all that is in the directory, hard links once."""
    sizes = {}
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            info = Path(parent, name).lstat()
            sizes[info.st_dev, info.st_ino] = info.st_blocks * 512
    return sum(sizes.values())


def _memory_kib(name: str) -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
