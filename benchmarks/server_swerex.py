"""The SWE-ReX face against swe-rex's own server: `run_in_session("true")` through swe-rex's own client, unchanged.

    pip install swe-rex==1.4.0 aiohttp; python benchmarks/server_swerex.py [--blocks 30] [--json]

Both servers run on this machine, each in a process of its own, and are called in turn, in random order within blocks.
swe-rex's server runs commands on this machine itself, the face in a cell. `floor` is the client's cheapest call to the
face, `is_alive`, which opens a connection as every call of this client does. Prints numbers and asserts none.
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
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from typing import Any

import uvicorn
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

import dutyfree
from dutyfree.server.access import StaticAccess
from dutyfree.server.listening import http_config
from dutyfree.server.swerex import SwerexApp

TOKEN = "benchmark"
PORTS = {"dutyfree": 18731, "swe-rex": 18732}
CALLS = {"dutyfree": 20, "swe-rex": 4}
"""Calls of one block: swe-rex's server takes a tenth of a second for each."""


async def serve() -> None:
    """The face over cells of this machine."""
    async with dutyfree.local(substrate="cell") as host:
        face = SwerexApp(StaticAccess(host, {TOKEN: "benchmark"}))
        config = http_config(face, host="127.0.0.1", port=PORTS["dutyfree"])
        await uvicorn.Server(config).serve()


def start(stack: ExitStack, *command: str) -> None:
    """A server, until the stack is left."""
    process = stack.enter_context(subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL))
    stack.callback(process.terminate)


async def timed_ms(call: Callable[[], Awaitable[Any]]) -> float:
    start_s = time.perf_counter()
    await call()
    return (time.perf_counter() - start_s) * 1e3


async def measure(blocks: int) -> dict[str, list[float]]:
    """The times of each kind of call."""
    runtimes = {name: RemoteRuntime(auth_token=TOKEN, port=port, timeout=5.0) for name, port in PORTS.items()}
    true, bash = BashAction(command="true"), Command(command="true", shell=True)
    calls: dict[str, tuple[int, Callable[[], Awaitable[Any]]]] = {
        "floor": (CALLS["dutyfree"], runtimes["dutyfree"].is_alive)
    }
    for name, runtime in runtimes.items():
        await runtime.wait_until_alive(timeout=30)
        await runtime.create_session(CreateBashSessionRequest(startup_timeout=10))
        calls[f"{name} run_in_session"] = CALLS[name], lambda runtime=runtime: runtime.run_in_session(true)
        calls[f"{name} execute"] = CALLS[name], lambda runtime=runtime: runtime.execute(bash)
    times_ms: dict[str, list[float]] = {name: [] for name in calls}
    for block in range(blocks + 1):
        for name in random.sample(list(calls), len(calls)):
            count, call = calls[name]
            found = [await timed_ms(call) for _ in range(count)]
            times_ms[name] += found if block else []  # the first block warms up
    for runtime in runtimes.values():
        await runtime.close()
    return times_ms


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve())
        return
    with ExitStack() as stack:
        start(stack, __file__, "--serve")
        start(stack, "-m", "swerex", "--host", "127.0.0.1", "--port", str(PORTS["swe-rex"]), "--auth-token", TOKEN)
        with redirect_stdout(StringIO()):
            times_ms = asyncio.run(measure(options.blocks))
    p50_ms = {name: statistics.median(times) for name, times in times_ms.items()}
    p95_ms = {name: statistics.quantiles(times, n=20)[-1] for name, times in times_ms.items()}
    ratio = p50_ms["swe-rex run_in_session"] / p50_ms["dutyfree run_in_session"]
    if options.json:
        print(json.dumps({"p50_ms": p50_ms, "p95_ms": p95_ms, "run_in_session_ratio": ratio}))
        return
    for name, times in times_ms.items():
        print(f"{name:26} p50 {p50_ms[name]:8.2f} ms   p95 {p95_ms[name]:8.2f} ms   {len(times)} calls")
    print(f"run_in_session is {ratio:.1f} times as fast")


if __name__ == "__main__":
    main()
