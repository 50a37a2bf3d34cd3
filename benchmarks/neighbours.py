"""What a hostile sandbox costs its neighbour: actions of one cell while another, held to one CPU, attacks the kernel.

    python benchmarks/neighbours.py [--blocks 20] [--actions 15] [--json]

Prints numbers and asserts none. Every block measures the neighbour once beside each attack and once in quiet, in a
random order; ratios are of medians to that of quiet, with 95 % intervals from a bootstrap over whole blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time

import dutyfree
from cells import ratio_of_medians
from dutyfree.client.box import Box
from dutyfree.model import Resources
from dutyfree.testing.isolation import compile_program

MIB = 1024 * 1024
QUIET = "quiet"
SETTLE_S = 0.2
ATTACKER = Resources(cpus=1, memory_bytes=64 * MIB, pids=128)
LOOP = "while :; do {}; done"
ATTACKS = {
    "computes": LOOP.format(":"),
    "netlink sockets, user": LOOP.format("/tmp/probe fill-sockets netlink-user 256"),
    "netlink sockets, route": LOOP.format("/tmp/probe fill-sockets netlink-route 256"),
    "UDP buffers": LOOP.format("/tmp/probe fill-sockets udp 256"),
    "TCP buffers": LOOP.format("/tmp/probe fill-sockets tcp 256"),
    "terminals": LOOP.format("/tmp/probe open-terminals 600"),
    "asynchronous I/O": LOOP.format("/tmp/probe io-setup"),
    "socket filters": LOOP.format("/tmp/probe attach-filter one"),
    "file watchers": LOOP.format("/tmp/probe hold-watchers 900"),
    "memory": LOOP.format("/tmp/probe memory-bomb 512"),
    "processes": "/tmp/probe fork-bomb",
}
"""What the attacker runs; `computes` attacks nothing, and shows what one busy CPU costs by itself."""


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--actions", type=int, default=15, help="actions of the neighbour in each measurement")
    parser.add_argument("--json", action="store_true", help="the numbers for machines")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="neighbours-") as directory:
        program = compile_program(directory).read_bytes()
        times_ms = await measure(program, options.blocks, options.actions)
    rows = [row(name, times, times_ms[QUIET]) for name, times in times_ms.items()]
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    print(f"a neighbour's action, {options.blocks} blocks of {options.actions}; medians of blocks")
    for each in rows:
        print(f"  {each['attack']:24} p50 {each['p50_ms']:7.2f} ms   {each['ratio']:5.2f} times quiet "
              f"({each['low']:.2f}-{each['high']:.2f})")  # fmt: skip
    return 0


def row(name: str, times: list[float], quiet: list[float]) -> dict[str, object]:
    point, low, high = ratio_of_medians(times, quiet)
    return {"attack": name, "p50_ms": statistics.median(times), "ratio": point, "low": low, "high": high}


async def measure(program: bytes, blocks: int, actions: int) -> dict[str, list[float]]:
    """The median time of an action, by attack, for each block."""
    times_ms: dict[str, list[float]] = {name: [] for name in (QUIET, *ATTACKS)}
    async with dutyfree.local() as host, host.lease() as neighbour:
        for block in range(blocks):
            for name in random.sample(list(times_ms), len(times_ms)):
                async with host.lease(resources=ATTACKER) as attacker:
                    await attacker.files.write("/tmp/probe", program, mode=0o755)
                    times_ms[name].append(await beside(attacker, ATTACKS.get(name), neighbour, actions))
            print(f"block {block + 1} of {blocks}", file=sys.stderr)
    return times_ms


async def beside(attacker: Box, attack: str | None, neighbour: Box, actions: int) -> float:
    """How long the neighbour's actions take while the attack is under way."""
    running = asyncio.create_task(attacker.run(attack or "sleep 600"))
    try:
        await asyncio.sleep(SETTLE_S)
        times = []
        for _ in range(actions):
            start = time.perf_counter()
            await neighbour.run("true")
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times)
    finally:
        running.cancel()
        await asyncio.wait([running])


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
