"""Timeouts of actions."""

from __future__ import annotations

import asyncio
import time

from dutyfree.model import Capability
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run


@check(
    "timeouts.observation", "a timeout gives an observation on time with the output so far; the sandbox stays usable"
)
async def observation(context: Context) -> None:
    box = await context.sandbox()
    start_s = time.monotonic()
    seen = await run(box, "echo before; echo error >&2; sleep 20; echo after", timeout_s=0.5)
    expect.between(time.monotonic() - start_s, 0.4, 3 * context.patience, "the time to the timeout, in s,")
    expect.true(seen.timed_out, "the timeout is not marked")
    expect.true(not seen.ok, "a command that was cut short is ok")
    expect.equal((seen.stdout, seen.stderr), (b"before\n", b"error\n"), "the output before the timeout")
    expect.equal((await run(box, ["echo", "next"])).stdout, b"next\n", "the next action's output")


@check("timeouts.not-reached", "a command that ends in time is not marked as timed out")
async def not_reached(context: Context) -> None:
    seen = await run(await context.sandbox(), "sleep 0.2", timeout_s=10)
    expect.exited(seen)
    expect.true(not seen.timed_out, "the observation is marked as timed out")


@check("timeouts.short", "a timeout of 1 ms works")
async def short(context: Context) -> None:
    seen = await run(await context.sandbox(), ["sleep", "20"], timeout_s=0.001)
    expect.true(seen.timed_out, "the timeout is not marked")


@check("timeouts.children", "a timeout ends the command's children and its background jobs")
async def children(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/late"
    seen = await run(box, f"(sleep 1.5; echo late > {path}) & (sleep 1.5; echo late > {path}); true", timeout_s=0.5)
    expect.true(seen.timed_out, "the timeout is not marked")
    await asyncio.sleep(2)
    expect.true(not (await run(box, ["cat", path])).ok, "a child went on after the timeout")


@check(
    "timeouts.daemons",
    "a timeout also ends descendants that left the process group and the session, and orphans",
    needs=(Capability.KILL_TREE,),
)
async def daemons(context: Context) -> None:
    box = await context.sandbox()
    path = await context.scratch(box)
    work = f"echo $$ >> {path}/started; sleep {2 * context.patience:g}; echo late > {path}/late"
    line = (
        f"setsid sh -c '{work}' & (setsid sh -c '{work}' > /dev/null 2>&1 < /dev/null &); "
        f"sh -c \"setsid sh -c '{work}' &\"; sleep 20"
    )
    seen = await run(box, line, timeout_s=context.patience)
    expect.true(seen.timed_out, "the timeout is not marked")
    started = (await run(box, ["cat", f"{path}/started"])).stdout.split()
    expect.equal(len(started), 3, "the number of daemons that started")
    await asyncio.sleep(2.5 * context.patience)
    expect.true(not (await run(box, ["cat", f"{path}/late"])).ok, "a daemon went on after the timeout")


@check("timeouts.flood", "a timeout also ends a command that floods its output")
async def flood(context: Context) -> None:
    seen = await run(await context.sandbox(), "cat /dev/zero", timeout_s=0.5, output_limit_bytes=1000)
    expect.true(seen.timed_out and seen.truncated, f"timed_out={seen.timed_out}, truncated={seen.truncated}")
    expect.equal(len(seen.stdout), 1000, "the output kept")
    expect.true(seen.stdout_bytes > 1000, f"only {seen.stdout_bytes} bytes were counted")


@check("timeouts.others", "one action's timeout does not affect the others")
async def others(context: Context) -> None:
    box = await context.sandbox()
    slow, quick = await asyncio.gather(
        run(box, "sleep 1.5; echo slow", timeout_s=10), run(box, "sleep 20", timeout_s=0.3)
    )
    expect.true(quick.timed_out, "the timeout is not marked")
    expect.equal((slow.exit_code, slow.stdout), (0, b"slow\n"), "the other action")
