"""Two installations of Dutyfree side by side: is anything slower than before?

    python benchmarks/versions.py OLD/.venv/bin/python NEW/.venv/bin/python [--blocks 40]

Each interpreter runs this file as a worker with a host of its own. A block asks both for one round of every measure, in
random order; the table has medians, and the ratio new / old of the medians with an interval from resampled blocks.

`dutyfree bench --against` compares trials, with a verdict. This compares also what no trial does (resets, forks,
snapshots, pools), and versions that are too old for it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import dutyfree

RESAMPLES = 2000
ON_DISK = {"writes": "disk"} if hasattr(dutyfree, "Writes") else {"upper": "disk"}
"""Older versions have another name for it."""
Measure = Callable[[Any], Awaitable[None]]


async def cold(host: Any) -> None:
    async with host.lease() as box:
        await box.run("true")


async def colds(host: Any) -> None:
    """One after the other: a single one varies more than the differences that are looked for."""
    for _ in range(8):
        await cold(host)


async def cold_on_disk(host: Any) -> None:
    async with host.lease(**ON_DISK) as box:
        await box.run("true")


async def burst(host: Any) -> None:
    await asyncio.gather(*(cold(host) for _ in range(8)))


async def reset(host: Any) -> None:
    async with host.lease() as box:
        await box.reset()


async def fork(host: Any) -> None:
    async with host.lease() as box:
        await box.run("echo 1 > /tmp/a")
        await box.fork(8)


async def snapshots(host: Any) -> None:
    async with host.lease() as box:
        for _ in range(4):
            await box.run("echo 1 >> /tmp/a")
            await box.snapshot()


async def actions(host: Any) -> None:
    async with host.lease() as box:
        for _ in range(50):
            await box.run("true")


async def imports(host: Any) -> None:
    async with host.lease() as box:
        for _ in range(2):
            await box.run(["/usr/bin/python3", "-c", "import asyncio, email, http.client, json, sqlite3, unittest"])


async def listing(host: Any) -> None:
    async with host.lease() as box:
        await box.run("ls -lR /usr/lib/python3* > /dev/null")


async def session(host: Any) -> None:
    async with host.lease() as box, box.session() as shell:
        for _ in range(50):
            await shell.run("true")


async def files(host: Any) -> None:
    async with host.lease() as box:
        for number in range(20):
            await box.files.write(f"/tmp/{number}", b"x" * 1000)
            await box.files.read(f"/tmp/{number}")


async def warm(host: Any) -> None:
    """One lease after the other: each finds the sandbox of the one before, reset."""
    for _ in range(10):
        async with host.lease():
            pass
        while not host.pool.status().idle:  # noqa: ASYNC110  # older versions have nothing else to wait for
            await asyncio.sleep(0.001)


async def churn(host: Any) -> None:
    """Eight tenants at a time in a pool of eight: every sandbox is reset between two of them."""
    places = asyncio.Semaphore(8)

    async def tenant() -> None:
        async with places, host.lease() as box:
            await box.run("true")

    await asyncio.gather(*(tenant() for _ in range(48)))


POOLED = ("a warm lease and its reset", "a lease in a busy pool")
MEASURES: dict[str, tuple[Measure, int]] = {
    "create + run + destroy": (colds, 8),
    "the same on disk": (cold_on_disk, 1),
    "8 at a time": (burst, 8),
    "create + reset": (reset, 1),
    "create + fork(8)": (fork, 1),
    "create + 4 snapshots": (snapshots, 1),
    "an action": (actions, 50),
    "a session's action": (session, 50),
    "a Python that imports": (imports, 2),
    "ls -lR of the host's files": (listing, 1),
    "write + read a file": (files, 20),
    POOLED[0]: (warm, 10),
    POOLED[1]: (churn, 48),
}


async def work() -> None:
    """Answers each name on standard input with the milliseconds that one took."""
    pool = dutyfree.PoolOptions(sandboxes=8)
    async with dutyfree.local("cell") as host, dutyfree.local("cell", pool=pool) as pooled:
        for line in sys.stdin:
            measure, count = MEASURES[line.strip()]
            start = time.perf_counter()
            await measure(pooled if line.strip() in POOLED else host)
            print(json.dumps((time.perf_counter() - start) / count * 1e3), flush=True)


def ask(worker: subprocess.Popen[str], name: str) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(name, file=worker.stdin, flush=True)
    return float(json.loads(worker.stdout.readline()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pythons", nargs=2, metavar="PYTHON")
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=MEASURES, default=list(MEASURES), metavar="MEASURE")
    options = parser.parse_args()
    workers = [
        subprocess.Popen([python, __file__, "work"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for python in options.pythons
    ]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in options.only}
    for block in range(options.blocks + 2):
        for name in random.sample(options.only, len(options.only)):
            order = random.sample([0, 1], 2)
            seen = {index: ask(workers[index], name) for index in order}
            if block >= 2:  # the first ones fill caches
                times[name].append((seen[0], seen[1]))
        print(f"\r{block + 1} of {options.blocks + 2} blocks", end="", file=sys.stderr)
    for worker in workers:
        worker.communicate(timeout=30)
    print(file=sys.stderr)
    print(f"{'ms, median of ' + str(options.blocks):<28}{'old':>9}{'new':>9}{'new / old':>11}")
    for name, pairs in times.items():
        old, new = (statistics.median(each) for each in zip(*pairs, strict=True))
        low, high = interval(pairs)
        print(f"{name:<28}{old:>9.3f}{new:>9.3f}{new / old:>11.3f} ({low:.3f}-{high:.3f})")


def interval(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    ratios = []
    for _ in range(RESAMPLES):
        old, new = zip(*random.choices(pairs, k=len(pairs)), strict=True)
        ratios.append(statistics.median(new) / statistics.median(old))
    ratios.sort()
    return ratios[RESAMPLES // 40], ratios[-RESAMPLES // 40]


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        asyncio.run(work())
    else:
        main()
