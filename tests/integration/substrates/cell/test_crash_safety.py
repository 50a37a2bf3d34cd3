"""A host process that is killed takes everything with it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time

import pytest

from dutyfree.testing import leaks

pytestmark = pytest.mark.alone  # leak checks beside it would count the spawners of hosts that it has killed
CELLS = 50
HOST = f"""
import asyncio, dutyfree

async def main():
    async with dutyfree.local() as host:
        unlimited = dutyfree.Resources(disk_bytes=None)
        leases = [host.lease(writes="disk" if n % 10 == 0 else "memory") for n in range({CELLS})]
        leases.append(host.lease(writes="disk", resources=unlimited))
        boxes = [await lease.__aenter__() for lease in leases]
        kept = []
        for box in (*boxes[:3], *boxes[-2:]):
            await box.run("echo x > /tmp/x")
            kept.append(await box.snapshot())
            boxes += await box.fork(2)
        for box in boxes:
            await box.run("setsid sleep 1000 > /dev/null 2>&1 &")
        print("ready", flush=True)
        await asyncio.gather(*(box.run("sleep 1000") for box in boxes))

asyncio.run(main())
"""


@pytest.mark.parametrize("killed", ["host", "spawner", "both"])
async def test_nothing_outlives_a_killed_host(killed: str) -> None:
    before = leaks.snapshot()
    process = subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    try:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
        assert leaks.difference(before, leaks.snapshot(hosts=[process.pid])), "the check must see cells that are alive"
        spawner = spawner_of(process.pid)
        if killed != "host":
            os.kill(spawner, signal.SIGKILL)
        if killed != "spawner":
            process.kill()
        start = time.monotonic()
        # Where only the spawner was killed, its cells die with it, and the host says so and ends by itself.
        await asyncio.to_thread(process.wait, 10)
        process.stdout.close()
        left = await leaks.settle(before, within_s=2.0, hosts=[process.pid])
        if killed == "host":
            assert left == []
        else:  # without anyone to clean up, directories and cgroups wait for the next start; no process does
            # (When the dead are buried that were left to the machine's first process, is up to that one.)
            assert [each for each in left if each.startswith("process") and ", zombie)" not in each] == []
            await sweep()
            assert await leaks.settle(before, within_s=10.0, hosts=[process.pid]) == []
        print(f"after {killed} was killed: clean in {time.monotonic() - start:.2f} s")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def sweep() -> None:
    """What the next start does first."""
    code = "import asyncio, dutyfree\nasync def main():\n  async with dutyfree.local(): pass\nasyncio.run(main())"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], check=True, timeout=30)


def spawner_of(host: int) -> int:
    children = subprocess.run(
        ["pgrep", "-P", str(host), "-f", "dutyfree-spawner"], capture_output=True, text=True, check=True
    )
    return int(children.stdout.split()[0])
