"""What the studies of `images.py` share: the kinds of sandboxes, and how contenders are interleaved."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from cells import Study, progress
from dutyfree.client.box import Box
from dutyfree.client.local import LocalHost
from dutyfree.model import Command, Image, Resources, Writes

Contender = Callable[[], Awaitable[float]]
PAUSE_S = 0.1
"""Before whatever is measured: what the operation before it left to the background is done by then."""
PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class Kind:
    """One kind of writable space. In memory, it gets half of the memory at most."""

    title: str
    writes: Writes
    disk_bytes: int | None


TMPFS = Kind("upper on tmpfs", Writes.MEMORY, 2 * 1024**3)
DISK = Kind("upper on disk", Writes.DISK, None)
LIMITED = Kind("upper on disk, limited", Writes.DISK, 2 * 1024**3)
KINDS = (TMPFS, DISK, LIMITED)


@dataclass(frozen=True)
class Bench:
    """What every study needs."""

    host: LocalHost
    rng: random.Random
    quick: bool

    def blocks(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @asynccontextmanager
    async def box(self, kind: Kind = TMPFS, image: Image | None = None) -> AsyncIterator[Box]:
        resources = Resources(memory_bytes=6 * 1024**3, disk_bytes=kind.disk_bytes)
        async with self.host.lease(image, writes=kind.writes, resources=resources) as box:
            yield box

    async def interleave(
        self, title: str, baseline: str, contenders: Mapping[str, Contender], blocks: int, *, warm_up: int
    ) -> Study:
        """Every block runs each contender once, in a random order. The blocks of warming up are not kept."""
        study = Study(title, baseline, {name: [] for name in contenders})
        for block in range(-warm_up, blocks):
            progress(f"{title}: block {block + 1} of {blocks}")
            for name in self.rng.sample(list(contenders), len(contenders)):
                elapsed_ms = await contenders[name]()
                if block >= 0:
                    study.times_ms[name].append(elapsed_ms)
        progress("")
        return study


async def run(box: Box, command: Command) -> str:
    """Run what must succeed, and return what it says."""
    seen = await box.run(command)
    if seen.exit_code != 0:
        raise RuntimeError(f"a command ended with {seen.exit_code}: {seen.stderr[-500:].decode(errors='replace')}")
    return seen.text


async def write_megabytes(box: Box, count: int) -> None:
    """Change that much, in files of one megabyte each."""
    lines = (
        "import os, sys",
        "os.makedirs('/root/written')",
        "data = os.urandom(1000_000)",
        "for number in range(int(sys.argv[1])): open(f'/root/written/{number}', 'wb').write(data)",
    )
    await run(box, [PYTHON, "-c", "\n".join(lines), str(count)])
