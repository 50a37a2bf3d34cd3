"""A server under load: many live sandboxes of one client process, through `dutyfree.connect` over TCP on loopback.

    python benchmarks/server_load.py [--sandboxes 1000] [--actions 20000] [--concurrency 200] [--open-s 20] [--json]

A server is started with `dutyfree serve`. The client leases the sandboxes and keeps them all; then it runs `true` in
them, `--concurrency` at a time (closed loop), which gives the rate of saturation; then at 50 % and 90 % of that rate
(open loop: arrivals are Poisson, and a latency counts from the moment at which its action was meant to start). Prints
latencies, rates, errors and memory, and asserts none. Client, node and cells share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import dutyfree
from server import serving

LEASE_AT_ONCE = 16
MAX_WAITING = 10_000
"""An open loop that falls so far behind ends: the rate was none that the server can keep."""


class Seen:
    """Latencies and errors of one stretch."""

    def __init__(self) -> None:
        self.latencies_s: list[float] = []
        self.errors: Counter[str] = Counter()
        self.wall_s = 0.0

    async def count(self, action: Awaitable[dutyfree.Observation], start_s: float) -> None:
        """Wait for an action, and note how long it took since `start_s`."""
        try:
            seen = await action
        except dutyfree.DutyfreeError as error:
            self.errors[f"{type(error).__name__}: {error}"[:120]] += 1
            return
        if not seen.ok:
            self.errors[f"exit code {seen.exit_code}"] += 1
        self.latencies_s.append(time.perf_counter() - start_s)

    def row(self) -> dict[str, Any]:
        """For people and JSON."""
        ordered = sorted(self.latencies_s)
        quantiles = {f"p{name}_ms": _quantile(ordered, share) for name, share in _QUANTILES.items()}
        rate = len(ordered) / self.wall_s if self.wall_s else 0.0
        return {"actions": len(ordered), "per_s": rate, **quantiles, "errors": dict(self.errors)}


_QUANTILES = {"50": 0.5, "90": 0.9, "99": 0.99, "100": 1.0}


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1e3 if ordered else float("nan")


async def closed_loop(boxes: Sequence[dutyfree.Box], actions: int, concurrency: int) -> Seen:
    """`actions` in all boxes in turn, `concurrency` at a time."""
    seen, left = Seen(), iter(range(actions))

    async def work() -> None:
        for number in left:
            await seen.count(boxes[number % len(boxes)].run(["true"]), time.perf_counter())

    start_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    seen.wall_s = time.perf_counter() - start_s
    return seen


async def open_loop(boxes: Sequence[dutyfree.Box], per_s: float, lasting_s: float, rng: random.Random) -> Seen:
    """Actions that start at random moments, `per_s` of them in a second, whether or not earlier ones have ended."""
    seen, tasks = Seen(), set[asyncio.Task[None]]()
    start_s = intended_s = time.perf_counter()
    while intended_s < start_s + lasting_s and len(tasks) < MAX_WAITING:
        intended_s += rng.expovariate(per_s)
        if (wait_s := intended_s - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        task = asyncio.create_task(seen.count(rng.choice(boxes).run(["true"]), intended_s))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    if len(tasks) >= MAX_WAITING:
        seen.errors[f"given up with {MAX_WAITING} actions under way"] += 1
    await asyncio.gather(*tasks)
    seen.wall_s = time.perf_counter() - start_s
    return seen


def memory(pid: int) -> dict[str, float]:
    """RSS and PSS of a process, in MiB; none of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        lines = ["Rss: 0", "Pss: 0"]
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return {name.lower() + "_mib": int(fields[name].split()[0]) / 1024 for name in ("Rss", "Pss")}


def parents() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for each in Path("/proc").iterdir():
        if each.name.isdigit():
            with suppress(OSError):
                found[int(each.name)] = int((each / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def node_of(server: int) -> int:
    """The node among the processes of a server."""
    for pid, parent in parents().items():
        if parent == server and b"server.node" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise SystemExit("error: the server has no node")


def descendants(pid: int) -> list[int]:
    """All processes below one."""
    children: dict[int, list[int]] = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    below = list(children.get(pid, ()))
    for each in below:  # which grows meanwhile
        below += children.get(each, ())
    return below


async def lease_all(host: dutyfree.Host, count: int) -> tuple[list[dutyfree.Box], Seen]:
    """Lease `count` sandboxes, a few at a time."""
    seen, boxes, left = Seen(), list[dutyfree.Box](), iter(range(count))

    async def work() -> None:
        for _ in left:
            start_s = time.perf_counter()
            boxes.append(await host.acquire(timeout_s=300))
            seen.latencies_s.append(time.perf_counter() - start_s)

    start_s = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(LEASE_AT_ONCE)))
    seen.wall_s = time.perf_counter() - start_s
    return boxes, seen


async def measure(options: argparse.Namespace, say: Callable[[str, dict[str, Any]], None]) -> None:
    """Everything, in order."""
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as place:
        async with serving(Path(place)) as server:
            node = node_of(server["pid"])

            def say_memory(when: str) -> None:
                cells = descendants(node)
                say(f"memory {when}, node", memory(node))
                pss_mib = sum(memory(each)["pss_mib"] for each in cells)
                say(f"memory {when}, sandboxes", {"processes": len(cells), "pss_mib": pss_mib})
                say(f"memory {when}, client", memory(os.getpid()))

            async with dutyfree.connect(server["native"], token=server["token"]) as host:
                say_memory("at first")
                boxes, leased = await lease_all(host, options.sandboxes)
                say(f"{len(boxes)} leases", leased.row())
                say_memory("with all sandboxes")
                await closed_loop(boxes, len(boxes), options.concurrency)  # the first action of each is another thing
                closed = await closed_loop(boxes, options.actions, options.concurrency)
                say(f"closed loop, {options.concurrency} at a time", closed.row())
                saturation = len(closed.latencies_s) / closed.wall_s
                for share in (0.5, 0.9):
                    opened = await open_loop(boxes, share * saturation, options.open_s, rng)
                    say(f"open loop, {share:.0%} of {saturation:.0f}/s", opened.row())
                say_memory("after the load")
                start_s = time.perf_counter()
            say("closing all", {"s": time.perf_counter() - start_s})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sandboxes", type=int, default=1000)
    parser.add_argument("--actions", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=200)
    parser.add_argument("--open-s", type=float, default=20.0, help="how long each open loop lasts")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {soft} of {hard} descriptors", file=sys.stderr)

    def say(what: str, values: dict[str, Any]) -> None:
        if options.json:
            print(json.dumps({"what": what, **values}), flush=True)
            return
        shown = (
            f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
        )
        print(f"{what:36} {'  '.join(shown)}", flush=True)

    asyncio.run(measure(options, say))


if __name__ == "__main__":
    main()
