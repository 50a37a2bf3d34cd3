"""A server whose processes are killed: what is lost, what is left, and how soon it serves again.

    python benchmarks/server_kills.py [--kills 20] [--sandboxes 100] [--json]

Starts `dutyfree serve` with two gateways. First its gateways are killed with SIGKILL, in turn, while a native client
and E2B's SDK run actions that each append a line of their own to a file in the sandbox: the files say what ran, and how
often. Then the node is killed while clients lease, run and close, with `--sandboxes` alive. At last the supervisor is
killed. Prints counts and times, and asserts none: `tests/integration/server/test_kills.py` does, with fewer kills.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import dutyfree
from dutyfree.testing import leaks
from server import serving
from server_load import Http, parents

WORKERS = 8
GATEWAYS = 2
SERVING_S = 30.0
"""The longest that a server may take to serve again, before this gives up."""
CALL_S = 30.0
"""A call that takes longer hangs."""


class Seen:
    """What clients saw: successes, errors by type, and calls that took too long."""

    def __init__(self) -> None:
        self.done = 0
        self.errors: Counter[str] = Counter()
        self.untyped: Counter[str] = Counter()
        self.hangs = 0

    async def call(self, what: Awaitable[Any], is_typed: Callable[[Exception], bool]) -> Any:
        """The result of a call; None if it failed."""
        try:
            async with asyncio.timeout(CALL_S):
                result = await what
        except TimeoutError:
            self.hangs += 1
        except Exception as error:
            self.errors[type(error).__name__] += 1
            if not is_typed(error):
                self.untyped[f"{type(error).__name__}: {error}"[:200]] += 1
        else:
            self.done += 1
            return result
        return None

    def row(self) -> dict[str, Any]:
        """For people and JSON."""
        return {"done": self.done, "errors": dict(self.errors), "untyped": dict(self.untyped), "hangs": self.hangs}


def is_native(error: Exception) -> bool:
    """Whether it is one of ours."""
    return isinstance(error, dutyfree.DutyfreeError)


def is_sdk(error: Exception) -> bool:
    """Whether it is E2B's, or what the SDK raises when its connection breaks."""
    return type(error).__module__.partition(".")[0] in ("e2b", "httpx", "httpcore", "connectrpc")


def is_broken(error: Exception) -> bool:
    """Whether a connection was broken, or refused."""
    return isinstance(error, OSError | IndexError)


def processes(server: int, what: str) -> list[int]:
    """The processes of a server: `node` or `gateway`, oldest first."""
    found = []
    for pid, parent in sorted(parents().items()):
        with suppress(OSError):
            if parent == server and f"server.{what}".encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


async def killed(server: int, what: str, turn: int) -> int:
    """Kill one process of a server once all of them are there."""
    while len(found := processes(server, what)) < (GATEWAYS if what == "gateway" else 1):  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0.01)
    pid = found[turn % len(found)]
    os.kill(pid, signal.SIGKILL)
    return pid


async def again_s(attempt: Callable[[], Awaitable[Any]], is_typed: Callable[[Exception], bool], seen: Seen) -> float:
    """How long it takes until an attempt succeeds."""
    start_s = time.monotonic()
    while time.monotonic() - start_s < SERVING_S:
        before = seen.done
        await seen.call(attempt(), is_typed)
        if seen.done > before:
            return time.monotonic() - start_s
        await asyncio.sleep(0.01)
    return float("inf")


@asynccontextmanager
async def load(work: Callable[[int], Awaitable[None]]) -> AsyncIterator[None]:
    """Keep `WORKERS` workers at it during the block."""
    stopped = asyncio.Event()

    async def repeat(number: int) -> None:
        while not stopped.is_set():
            await work(number)

    workers = [asyncio.create_task(repeat(number)) for number in range(WORKERS)]
    try:
        yield
    finally:
        stopped.set()
        await asyncio.gather(*workers)


class Counted:
    """Actions that each leave a line of their own in their sandbox."""

    def __init__(self) -> None:
        self.started: set[str] = set()
        self.succeeded: set[str] = set()

    def line(self) -> tuple[str, str]:
        """A new action: its name, and its command."""
        name = f"a{len(self.started)}"
        self.started.add(name)
        return name, f"echo {name} >> /count"

    def judge(self, lines: list[str]) -> dict[str, int]:
        """Compare what ran with what was asked for."""
        counts = Counter(lines)
        return {
            "actions": len(self.started),
            "twice": sum(1 for count in counts.values() if count > 1),
            "lost": len(self.succeeded - set(counts)),
            "unknown": len(set(counts) - self.started),
        }


async def kill_gateways(server: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Kill gateways under work of both kinds of clients. Sandboxes live on, and each action runs once."""
    from e2b import AsyncSandbox

    access = {"api_key": server["token"], "api_url": server["http"], "sandbox_url": server["http"]}
    native, sdk, probes, client = Seen(), Seen(), Seen(), Http(server["http"], server["token"])

    async def listed() -> None:
        status, _, _ = await client.send("GET", "/v2/sandboxes")
        if status != 200:
            raise OSError(status)

    times_s = []
    async with dutyfree.connect(server["native"], token=server["token"]) as host:
        boxes = [await host.acquire() for _ in range(WORKERS // 2)]
        sandboxes = [await AsyncSandbox.create("base", timeout=3600, **access) for _ in range(WORKERS // 2)]
        mine: dict[int, Counted] = {number: Counted() for number in range(WORKERS)}

        async def work(number: int) -> None:
            name, command = mine[number].line()
            if number < len(boxes):
                result = await native.call(boxes[number].run(command), is_native)
            else:
                sandbox = sandboxes[number - len(boxes)]
                result = await sdk.call(sandbox.commands.run(command, timeout=20), is_sdk)
            if result is not None:
                mine[number].succeeded.add(name)

        async with load(work):
            for turn in range(options.kills):
                await asyncio.sleep(random.uniform(0.2, 0.6))
                await killed(server["pid"], "gateway", turn)
                times_s.append(await again_s(listed, is_broken, probes))
        left = [await box.run("cat /count") for box in boxes]
        texts = [seen.stdout.decode() for seen in left]
        texts += [(await each.commands.run("cat /count")).stdout for each in sandboxes]
        alive = sum(1 for text in texts if text)
        judged: Counter[str] = Counter()
        for number, text in enumerate(texts):
            judged.update(mine[number].judge(text.split()))
        for each in sandboxes:
            await each.kill()
        for box in boxes:
            await box.close()
    return {
        "kills": options.kills,
        "serving_again_s": max(times_s),
        "sandboxes_alive": f"{alive} of {len(texts)}",
        "died": len(texts) - alive,
        **judged,
        "native": native.row(),
        "sdk": sdk.row(),
    }


async def kill_node(server: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Kill the node under load. Every lease is accounted for, and it serves again."""
    from e2b import AsyncSandbox

    access = {"api_key": server["token"], "api_url": server["http"], "sandbox_url": server["http"]}
    seen, sdk, acquired, wrong = Seen(), Seen(), list[str](), Counter[str]()
    times_s, hosts = [], list[int]()
    async with dutyfree.connect(server["native"], token=server["token"]) as host:

        async def work(number: int) -> None:
            if number % 2:
                sandbox = await sdk.call(AsyncSandbox.create("base", timeout=60, **access), is_sdk)
                if sandbox is not None:
                    await sdk.call(sandbox.commands.run("true", timeout=20), is_sdk)
                    await sdk.call(sandbox.kill(), is_sdk)
                return
            box = await seen.call(host.acquire(timeout_s=20), is_native)
            if box is None:
                await asyncio.sleep(0.05)
                return
            acquired.append(box.lease.id)
            await seen.call(box.run(["true"]), is_native)
            await seen.call(box.close(), is_native)

        async def lease() -> None:
            box = await host.acquire(timeout_s=20)
            acquired.append(box.lease.id)
            await box.run(["true"])
            await box.close()

        async with load(work):
            for _ in range(options.kills):
                held = await _hold(host, options.sandboxes, seen)
                acquired += [box.lease.id for box in held]
                hosts.append(await killed(server["pid"], "node", 0))
                times_s.append(await again_s(lease, is_native, seen))
                await _judge_lost(host, held, wrong)
        try:
            await host.get("l-none")
        except dutyfree.LeaseLost:
            pass
        else:
            wrong["a lease that never was is there"] += 1
        open_now = {each.id for each in await host.find_leases()}
    wrong.update(_judge_records(server, acquired, open_now))
    return {
        "kills": options.kills,
        "held": options.sandboxes,
        "serving_again_s": max(times_s),
        "serving_again_median_s": sorted(times_s)[len(times_s) // 2],
        "leases": len(acquired),
        "wrong": dict(wrong),
        "hosts": hosts,
        "native": seen.row(),
        "sdk": sdk.row(),
    }


async def _hold(host: dutyfree.Host, count: int, seen: Seen) -> list[dutyfree.Box]:
    boxes = []
    while len(boxes) < count:
        wanted = (
            seen.call(host.acquire(timeout_s=20, ttl_s=600), is_native) for _ in range(min(16, count - len(boxes)))
        )
        boxes += [box for box in await asyncio.gather(*wanted) if box is not None]
    return boxes


async def _judge_lost(host: dutyfree.Host, held: list[dutyfree.Box], wrong: Counter[str]) -> None:
    """A lost lease is a failure of the infrastructure by its id; its box is dead."""
    for box in held:
        by_box = ("its box", box.run(["true"]), dutyfree.SandboxGone)
        for what, call, right in (by_box, ("its id", host.get(box.lease.id), dutyfree.SubstrateFailed)):
            try:
                await call
            except right:
                continue
            except dutyfree.DutyfreeError as error:
                wrong[f"a lost lease, by {what}: {type(error).__name__}"] += 1
            else:
                wrong[f"a lost lease, by {what}: lives"] += 1


def _judge_records(server: dict[str, Any], acquired: list[str], open_now: set[str]) -> Counter[str]:
    """Every lease that a client had is in the node's records, once, and has ended."""
    wrong: Counter[str] = Counter()
    with sqlite3.connect(f"file:{server['directory']}/state.sqlite?mode=ro", uri=True) as database:
        records = dict(database.execute("SELECT id, how FROM leases").fetchall())
    for lease_id, count in Counter(acquired).items():
        wrong["given twice"] += count > 1
        wrong["not in the records"] += lease_id not in records
        wrong["not ended in the records"] += lease_id not in open_now and records.get(lease_id, "") is None
        wrong["open"] += lease_id in open_now
    return Counter({name: count for name, count in wrong.items() if count})


async def kill_supervisor(server: dict[str, Any]) -> dict[str, Any]:
    """Kill the supervisor, with a sandbox alive: its processes end."""
    host = await dutyfree.connect(server["native"], token=server["token"]).__aenter__()
    await host.acquire(ttl_s=600)
    pids = [*processes(server["pid"], "node"), *processes(server["pid"], "gateway")]
    start_s = time.monotonic()
    os.kill(server["pid"], signal.SIGKILL)
    while (left := [pid for pid in pids if _is_alive(pid)]) and time.monotonic() - start_s < SERVING_S:  # noqa: ASYNC110
        await asyncio.sleep(0.02)
    ended_s = time.monotonic() - start_s
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    return {"ended_s": ended_s, "left": len(left)}


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def measure(options: argparse.Namespace, say: Callable[[str, dict[str, Any]], None]) -> None:
    """Everything, in order."""
    before = leaks.snapshot()
    with tempfile.TemporaryDirectory(prefix="server-kills-") as place:
        arguments = ["--http", "127.0.0.1:0", "--gateways", str(GATEWAYS)]
        async with serving(Path(place), *arguments) as server:
            server["directory"] = place
            hosts = processes(server["pid"], "node")
            say("gateways killed", await kill_gateways(server, options))
            of_node = await kill_node(server, options)
            hosts += [*of_node.pop("hosts"), *processes(server["pid"], "node")]
            say("node killed", of_node)
            say("supervisor killed", await kill_supervisor(server))
    left = await leaks.settle(before, within_s=10.0, hosts=hosts)
    say("left behind", {"things": [each for each in left if not each.startswith("file descriptor")]})


def main() -> None:
    """Kill, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--sandboxes", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", file=sys.stderr)

    def say(what: str, values: dict[str, Any]) -> None:
        if options.json:
            print(json.dumps({"what": what, **values}), flush=True)
            return
        print(what, flush=True)
        for name, value in values.items():
            print(f"  {name:24} {value:.2f}" if isinstance(value, float) else f"  {name:24} {value}", flush=True)

    asyncio.run(measure(options, say))


if __name__ == "__main__":
    main()
