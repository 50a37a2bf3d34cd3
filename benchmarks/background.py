"""What background processes cost the host: memory, time to start and to end, throughput, and their neighbours' actions.

    python benchmarks/background.py [--substrate cell] [--sandboxes 10] [--processes 100] [--json]

Prints numbers and asserts none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from contextlib import AsyncExitStack
from typing import Any

import dutyfree
from dutyfree.model import DEFAULT_KEEP_OUTPUT_BYTES
from dutyfree.testing.memory import resident_bytes

FLOOD_BYTES = 1_000_000_000
ACTIONS = 200


async def memory(host: dutyfree.LocalHost, sandboxes: int, processes: int, line: str, wanted_bytes: int) -> Any:
    """Start the processes, wait until each has written `wanted_bytes`, and end the leases."""
    async with AsyncExitStack() as stack:
        boxes = [await stack.enter_async_context(host.lease()) for _ in range(sandboxes)]
        for box in boxes:
            await box.run(["true"])
        before_bytes, start_s = resident_bytes(), time.perf_counter()
        started = [await box.start(line) for box in boxes for _ in range(processes)]
        start_ms = (time.perf_counter() - start_s) * 1e3 / len(started)
        while any(each.info.output_bytes < wanted_bytes for each in started):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        ready_ms = (time.perf_counter() - start_s) * 1e3 / len(started)
        grown_bytes = resident_bytes() - before_bytes
        end_s = time.perf_counter()
    return {
        "processes": len(started),
        "memory_kib_each": round(grown_bytes / 1024 / len(started), 1),
        "start_call_ms_each": round(start_ms, 3),
        "first_output_ms_each": round(ready_ms, 3),
        "end_of_all_leases_ms": round((time.perf_counter() - end_s) * 1e3, 1),
    }


async def throughput(host: dutyfree.LocalHost) -> float:
    """Megabytes per second from one process into its ring."""
    async with host.lease() as box:
        start_s = time.perf_counter()
        process = await box.start(f"head -c {FLOOD_BYTES} /dev/zero")
        await process.wait()
        return round(FLOOD_BYTES / 1e6 / (time.perf_counter() - start_s))


async def latencies_ms(box: dutyfree.Box) -> list[float]:
    """The wall times of `true`, one after the other."""
    found = []
    for _ in range(ACTIONS):
        start_s = time.perf_counter()
        await box.run(["true"])
        found.append((time.perf_counter() - start_s) * 1e3)
    return found


async def neighbours(host: dutyfree.LocalHost) -> Any:
    """`true` in one sandbox, alone and while a process floods its ring in another one."""
    async with host.lease() as quiet, host.lease() as loud:
        alone, beside = [], []
        for _ in range(3):
            alone += await latencies_ms(quiet)
            flood = await loud.start("yes")
            beside += await latencies_ms(quiet)
            await flood.kill()
            await flood.wait()
        found = {"alone": alone, "beside_a_flood": beside}
        return {name: round(statistics.median(each), 2) for name, each in found.items()}


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--substrate", default="cell")
    parser.add_argument("--sandboxes", type=int, default=10)
    parser.add_argument("--processes", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    full = f"head -c {2 * DEFAULT_KEEP_OUTPUT_BYTES} /dev/zero; exec sleep 1000"
    async with dutyfree.local(options.substrate) as host:
        sizes = (host, options.sandboxes, options.processes)
        results = {
            "idle": await memory(*sizes, "echo ready; exec sleep 1000", 6),
            "full_rings": await memory(host, 1, 100, full, 2 * DEFAULT_KEEP_OUTPUT_BYTES),
            "throughput_mb_per_s": await throughput(host),
            "true_ms": await neighbours(host),
        }
    if options.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    asyncio.run(main())
