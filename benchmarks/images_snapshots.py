"""How long a snapshot takes as what was written grows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from cells import Study, since_ms
from dutyfree.client.box import Box
from images_study import DISK, KINDS, PAUSE_S, PYTHON, TMPFS, Bench, Contender, Kind, run, write_megabytes

SIZES_MB = (1, 10, 100, 1000)
COPIED_MB = (1, 100, 1000)
FILES = (100, 10_000, 50_000)
Measured = Callable[[Bench, Kind, int], Contender]
Write = Callable[[Box, int], Awaitable[None]]


async def studies(bench: Bench) -> list[Study]:
    """Between actions, by bytes and by files; then what has to read everything: beside a process, and saving."""
    found = []
    blocks = bench.blocks(9, 3)
    sizes_mb: tuple[int, ...] = SIZES_MB[::3] if bench.quick else SIZES_MB
    for kind in KINDS:
        contenders = {
            f"{size} MB written": _taking(bench, kind, write_megabytes, size, busy=False) for size in sizes_mb
        }
        found.append(await _by_size(bench, f"snapshot between actions, {kind.title}", contenders, blocks, warm_up=1))
    contenders = {f"{count} files of a byte": _taking(bench, TMPFS, _write_files, count, busy=False) for count in FILES}
    found.append(await _by_size(bench, f"snapshot between actions, {TMPFS.title}", contenders, blocks, warm_up=1))
    slow: list[tuple[str, Kind, Measured]] = [
        ("snapshot while a process runs, which copies", TMPFS, _while_running),
        ("snapshot while a process runs, which copies", DISK, _while_running),
        ("saving a snapshot to the store", TMPFS, _saving),
    ]
    for title, kind, measured in slow:
        sizes_mb = COPIED_MB[:2] if bench.quick else COPIED_MB
        contenders = {f"{size} MB written": measured(bench, kind, size) for size in sizes_mb}
        found.append(await _by_size(bench, f"{title}, {kind.title}", contenders, bench.blocks(3, 1), warm_up=0))
    return found


async def _by_size(bench: Bench, title: str, contenders: dict[str, Contender], blocks: int, *, warm_up: int) -> Study:
    return await bench.interleave(title, next(iter(contenders)), contenders, blocks, warm_up=warm_up)


async def _write_files(box: Box, count: int) -> None:
    lines = (
        "import os, sys",
        "os.makedirs('/root/written')",
        "for number in range(int(sys.argv[1])):",
        "    if number % 1000 == 0: os.mkdir(f'/root/written/{number // 1000}')",
        "    open(f'/root/written/{number // 1000}/{number}', 'wb').write(b'.')",
    )
    await run(box, [PYTHON, "-c", "\n".join(lines), str(count)])


def _taking(bench: Bench, kind: Kind, write: Write, size: int, *, busy: bool) -> Contender:
    async def measure() -> float:
        async with AsyncExitStack() as stack:
            box = await stack.enter_async_context(bench.box(kind))
            await write(box, size)
            if busy:
                await stack.enter_async_context(box.session())
            await asyncio.sleep(PAUSE_S)
            start = time.perf_counter()
            snapshot = await box.snapshot()
            elapsed_ms = since_ms(start)
            await snapshot.discard()
        return elapsed_ms

    return measure


def _while_running(bench: Bench, kind: Kind, size_mb: int) -> Contender:
    return _taking(bench, kind, write_megabytes, size_mb, busy=True)


def _saving(bench: Bench, kind: Kind, size_mb: int) -> Contender:
    async def measure() -> float:
        async with bench.box(kind) as box:
            await write_megabytes(box, size_mb)
            snapshot = await box.snapshot()
            await asyncio.sleep(PAUSE_S)
            start = time.perf_counter()
            await snapshot.save()
            elapsed_ms = since_ms(start)
            await snapshot.discard()
        # Each one is random bytes that nobody else has: a run of this must not add up to gigabytes on the disk.
        await asyncio.to_thread(bench.host.store.prune, older_than_s=None, keep_bytes=None)
        return elapsed_ms

    return measure
