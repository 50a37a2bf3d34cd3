"""What a server costs: a cell's action in this process, and through a node by a unix socket and by TCP on loopback.

    python benchmarks/server.py [--blocks 60] [--rounds 20] [--json]

A node is started with `dutyfree serve`. Each block asks every contender for some actions, lines of a session and warm
leases, in random order. Prints medians and their ratios to this process with 95 % intervals, and asserts none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import dutyfree
from cells import ratio_of_medians

HERE = "this process"
ECHO = "an echo of another process"
"""The least that a second process can cost: one line to it over a unix socket, and one back."""
Measure = Callable[[], Awaitable[Any]]


@asynccontextmanager
async def serving(directory: Path, *arguments: str) -> AsyncIterator[dict[str, Any]]:
    """A server for the length of the block; gives its addresses, its token and the id of its process."""
    command = [sys.executable, "-m", "dutyfree", "serve", "--json", "--http", "", "--native", "127.0.0.1:0"]
    command += ["--directory", str(directory), "--socket", str(directory / "node.socket"), "--drain", "0", *arguments]
    errors = (directory / "log").open("wb")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as server:  # noqa: ASYNC220 - once, at first
        try:
            assert server.stdout is not None
            line = await asyncio.to_thread(server.stdout.readline)
            if not line:
                raise SystemExit(f"error: the server did not start: {(directory / 'log').read_text()}")
            yield {**json.loads(line), "pid": server.pid}
        finally:
            server.terminate()


@asynccontextmanager
async def echoing(path: Path) -> AsyncIterator[Measure]:
    """A process that sends each line back, and one round trip to it."""
    program = (
        "import asyncio, sys\n"
        "class Echo(asyncio.Protocol):\n"
        "    def connection_made(self, transport): self.transport = transport\n"
        "    def data_received(self, data): self.transport.write(data)\n"
        "async def main():\n"
        "    server = await asyncio.get_running_loop().create_unix_server(Echo, sys.argv[1])\n"
        "    print('up', flush=True)\n"
        "    await server.serve_forever()\n"
        "asyncio.run(main())\n"
    )
    echo = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert echo.stdout is not None
    await echo.stdout.readline()
    reader, writer = await asyncio.open_unix_connection(path)

    async def once() -> None:
        writer.write(b"x" * 100)
        await reader.readexactly(100)

    try:
        yield once
    finally:
        writer.close()
        echo.terminate()
        await echo.wait()


async def contender(stack: AsyncExitStack, host: dutyfree.Host) -> dict[str, Measure]:
    """What is measured of one host: an action, a line of a session, a lease that is warm."""
    await stack.enter_async_context(host)
    box = await stack.enter_async_context(host.lease())
    shell = await stack.enter_async_context(box.session())

    async def lease() -> None:
        async with host.lease() as other:
            await other.run(["true"])

    return {"action": lambda: box.run("true"), "session": lambda: shell.run("true"), "lease, run, close": lease}


async def measure(blocks: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of each measure, by measure and contender, one entry a block."""
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as place:
        async with serving(Path(place)) as server, AsyncExitStack() as stack:
            hosts: dict[str, dutyfree.Host] = {
                HERE: dutyfree.local("cell", pool=dutyfree.PoolOptions(sandboxes=64)),
                "node, unix socket": dutyfree.connect(f"unix:{server['socket']}"),
                "node, TCP": dutyfree.connect(server["native"], token=server["token"]),
            }
            measures = {name: await contender(stack, host) for name, host in hosts.items()}
            kinds = list(measures[HERE])
            measures[ECHO] = {"session": await stack.enter_async_context(echoing(Path(place, "echo")))}
            names = list(measures)
            times: dict[str, dict[str, list[float]]] = {
                kind: {name: [] for name in names if kind in measures[name]} for kind in kinds
            }
            for block in range(blocks + 2):
                for kind in rng.sample(kinds, len(kinds)):
                    for name in rng.sample(list(times[kind]), len(times[kind])):
                        start_s = time.perf_counter()
                        for _ in range(rounds):
                            await measures[name][kind]()
                        if block >= 2:
                            times[kind][name].append((time.perf_counter() - start_s) / rounds * 1e3)
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    times = asyncio.run(measure(options.blocks, options.rounds))
    rows = []
    for kind, by_name in times.items():
        for name, values in by_name.items():
            point, low, high = ratio_of_medians(values, by_name[HERE], 1)
            rows.append({"measure": kind, "contender": name, "p50_ms": statistics.median(values),
                         "ratio": point, "low": low, "high": high})  # fmt: skip
    if options.json:
        print(json.dumps({"cores": os.cpu_count(), "load": os.getloadavg(), "rows": rows}))
        return
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for row in rows:
        print(f"{row['measure']:20} {row['contender']:26} {row['p50_ms']:8.3f} ms"
              f"  {row['ratio']:5.2f} ({row['low']:.2f}-{row['high']:.2f})")  # fmt: skip


if __name__ == "__main__":
    main()
