"""A server that is asked for ten times what it can give: what clients get, how soon, and what memory it takes.

    python benchmarks/server_overload.py [--seconds 60] [--times 10] [--sandboxes 20] [--json]

Starts `dutyfree serve` with places for `--sandboxes`. Clients that hold a sandbox for half a second, as many as there
are places, give its capacity. Then requests arrive at `--times` that rate, at random moments, whether or not earlier
ones were answered: most by the native protocol, every tenth over HTTP (E2B's). Meanwhile another owner leases one
sandbox after the other. Prints counts, latencies and memory, and asserts none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

import dutyfree
from server import serving
from server_kills import processes
from server_load import memory

HOLD_S = 0.5
CALIBRATE_S = 5.0
WAIT_S = 2.0
"""How long a request may wait for a place."""
MAX_UNDER_WAY = 5000


class Outcomes:
    """How requests ended, and how long they took until then."""

    def __init__(self) -> None:
        self.times_s: dict[str, list[float]] = {}

    def add(self, how: str, start_s: float) -> None:
        """One request."""
        self.times_s.setdefault(how, []).append(time.perf_counter() - start_s)

    def rows(self) -> dict[str, str]:
        """For people and JSON."""
        rows = {}
        for how, times_s in sorted(self.times_s.items()):
            ordered = sorted(times_s)
            p50, p99, most = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.99, 1.0))
            rows[how] = f"{len(ordered)}, p50 {p50 * 1e3:.0f} ms, p99 {p99 * 1e3:.0f} ms, longest {most * 1e3:.0f} ms"
        return rows


async def by_native(host: dutyfree.Host, seen: Outcomes, who: str) -> None:
    """Lease, hold, close."""
    start_s = time.perf_counter()
    try:
        box = await host.acquire(timeout_s=WAIT_S)
    except dutyfree.DutyfreeError as error:
        seen.add(f"{who}: {type(error).__name__}", start_s)
        return
    seen.add(f"{who}: leased", start_s)
    try:
        await asyncio.sleep(HOLD_S)
        await box.close()
    except dutyfree.DutyfreeError as error:
        seen.add(f"{who}, at its end: {type(error).__name__}", start_s)


async def by_http(client: httpx.AsyncClient, seen: Outcomes, who: str) -> None:
    """Create, hold, delete."""
    start_s = time.perf_counter()
    try:
        answer = await client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 30})
        told = answer.status_code != 429 or {"retry-after", "should-retry"} <= set(answer.headers)
        seen.add(f"{who}: {answer.status_code}{'' if told else ' without Retry-After'}", start_s)
        if answer.status_code == 201:
            await asyncio.sleep(HOLD_S)
            ended = await client.delete(f"/sandboxes/{answer.json()['sandboxID']}")
            if ended.status_code != 204:
                seen.add(f"{who}, at its end: {ended.status_code}", start_s)
    except httpx.HTTPError as error:
        seen.add(f"{who}: {type(error).__name__}", start_s)


async def capacity(host: dutyfree.Host, places: int) -> float:
    """Leases in a second with as many clients as there are places."""
    seen, end_s = Outcomes(), time.perf_counter() + CALIBRATE_S

    async def work() -> None:
        while time.perf_counter() < end_s:
            await by_native(host, seen, "native")

    await asyncio.gather(*(work() for _ in range(places)))
    return len(seen.times_s.get("native: leased", ())) / CALIBRATE_S


async def overload(
    hosts: tuple[dutyfree.Host, dutyfree.Host], client: httpx.AsyncClient, per_s: float, lasting_s: float
) -> Outcomes:
    """Requests at this rate; the second host is another owner's, who asks for one at a time."""
    seen, rng, tasks = Outcomes(), random.Random(1), set[asyncio.Task[None]]()
    start_s = intended_s = time.perf_counter()

    async def other() -> None:
        while time.perf_counter() < start_s + lasting_s:
            await by_native(hosts[1], seen, "another owner")

    others = asyncio.create_task(other())
    while intended_s < start_s + lasting_s:
        intended_s += rng.expovariate(per_s)
        if (wait_s := intended_s - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        if len(tasks) >= MAX_UNDER_WAY:
            seen.add("not sent: too many under way", intended_s)
            continue
        http = rng.random() < 0.1
        task = asyncio.create_task(by_http(client, seen, "http") if http else by_native(hosts[0], seen, "native"))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks, others)
    return seen


def write_settings(place: Path, sandboxes: int) -> Path:
    """A server with so many places, and ten times as many that may wait for one."""
    path = place / "settings.toml"
    path.write_text(f"[pool]\nsandboxes = {sandboxes}\nwaiting = {10 * sandboxes}\n")
    return path


def cpu_s(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def measure(options: argparse.Namespace, say: Callable[[str, dict[str, Any]], None]) -> None:
    """Everything, in order."""
    with tempfile.TemporaryDirectory() as place:
        settings = write_settings(Path(place), options.sandboxes)
        async with serving(Path(place), "--http", "127.0.0.1:0", "--config", str(settings)) as server:
            pids = {what: processes(server["pid"], what)[0] for what in ("node", "gateway")}

            def say_memory(when: str) -> None:
                say(f"memory {when}", {what: memory(pid)["rss_mib"] for what, pid in pids.items()})
                say(f"processor seconds {when}", {what: cpu_s(pid) for what, pid in pids.items()})

            async with (
                dutyfree.connect(server["native"], token=server["token"]) as host,
                dutyfree.connect(f"unix:{server['socket']}") as other,
                httpx.AsyncClient(
                    base_url=server["http"],
                    headers={"X-API-Key": server["token"]},
                    timeout=60,
                    limits=httpx.Limits(max_connections=1000),
                ) as client,
            ):
                per_s = await capacity(host, options.sandboxes)
                say("capacity", {"leases_per_s": per_s})
                say_memory("before")
                seen = await overload((host, other), client, options.times * per_s, options.seconds)
                say(f"{options.times:g} times that for {options.seconds:g} s", seen.rows())
                say_memory("after")
                start_s = time.perf_counter()
                async with host.lease() as box:
                    await box.run(["true"])
                say("then", {"lease_and_run_s": time.perf_counter() - start_s})
                left = [*await host.find_leases(), *await other.find_leases()]
                say("leases left", {"of both owners": len(left)})


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--times", type=float, default=10.0)
    parser.add_argument("--sandboxes", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", file=sys.stderr)

    def say(what: str, values: dict[str, Any]) -> None:
        if options.json:
            print(json.dumps({"what": what, **values}), flush=True)
            return
        print(what, flush=True)
        for name, value in values.items():
            print(f"  {name:40} {value:.2f}" if isinstance(value, float) else f"  {name:40} {value}", flush=True)

    asyncio.run(measure(options, say))


if __name__ == "__main__":
    main()
