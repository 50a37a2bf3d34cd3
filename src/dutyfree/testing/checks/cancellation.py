"""Calls that their caller cancels."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from dutyfree.contract import Sandbox
from dutyfree.model import Action, Capability
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run
from dutyfree.testing.memory import MIB


@check("cancellation.run", "a cancelled run ends its command within 2 s, and the sandbox stays usable")
async def cancelled_run(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/late"
    await _cancel(run(box, f"sleep 1.2; echo late > {path}; sleep 20"), after_s=0.3)
    expect.exited(await run(box, ["true"]))
    await asyncio.sleep(2)
    expect.true(not (await run(box, ["cat", path])).ok, "the command went on after its caller was cancelled")


@check("cancellation.moments", "runs cancelled at any moment leave a sandbox that works")
async def moments(context: Context) -> None:
    box = await context.sandbox()
    count = context.times(30)
    for number in range(count):
        await _cancel(run(box, ["cat"], stdin=bytes(200_000)), after_s=0.01 * number / count)
    expect.equal((await run(box, ["echo", "next"])).stdout, b"next\n", "the next action's output")


@check("cancellation.stream", "a cancelled reader ends its command, and the sandbox stays usable")
async def cancelled_stream(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/late"

    async def read() -> None:
        async with box.stream(Action(f"sleep 1.2; echo late > {path}; sleep 20")) as stream:
            async for _ in stream:
                pass

    await _cancel(read(), after_s=0.3)
    await asyncio.sleep(1.8)
    expect.true(not (await run(box, ["cat", path])).ok, "the command went on after its reader was cancelled")


@check("cancellation.session", "a cancelled line is stopped, and the session goes on", needs=(Capability.SESSIONS,))
async def cancelled_line(context: Context) -> None:
    async with await (await context.sandbox()).session() as shell:
        expect.exited(await shell.run("A=kept"))
        await _cancel(shell.run("sleep 15"), after_s=0.3)
        start_s = time.monotonic()
        expect.equal((await shell.run("echo $A", timeout_s=10)).text, "kept\n", "the variable after the cancellation")
        expect.between(time.monotonic() - start_s, 0, 4 * context.patience, "the time to the next line's end, in s,")


@check(
    "cancellation.session-open",
    "opening a session and cancelling it at any moment leaves a working sandbox",
    needs=(Capability.SESSIONS,),
)
async def cancelled_opening(context: Context) -> None:
    box = await context.sandbox()
    for number in range(10):
        await _cancel(box.session(), after_s=number / 2000)
    async with await box.session() as shell:
        expect.exited(await shell.run("true"))


@check(
    "cancellation.files",
    "a cancelled transfer leaves neither half a file nor a temporary one",
    needs=(Capability.FILES,),
)
async def cancelled_files(context: Context) -> None:
    box = await context.sandbox()
    path, folder = await context.scratch(box), context.folder()
    (folder / "big").write_bytes(bytes(32 * MIB))
    for moment_s in (0.0, 0.005, 0.02):
        await _cancel(box.files.upload(folder / "big", f"{path}/big"), after_s=moment_s)
    await asyncio.sleep(0.3 * context.patience)
    for entry in await box.files.list(path):
        expect.equal((entry.name, entry.size_bytes), ("big", 32 * MIB), "what is left of a cancelled upload")
    await box.files.write(f"{path}/next", b"next")
    expect.equal(await box.files.read(f"{path}/next"), b"next", "the next file")


@check("cancellation.destroy", "destroy can be called again after a call of it was cancelled")
async def cancelled_destroy(context: Context) -> None:
    box: Sandbox = await context.sandbox()
    await _cancel(box.destroy(), after_s=0)
    await box.destroy()
    expect.true(not box.alive, "the sandbox is alive")


async def _cancel(call: Coroutine[Any, Any, object], *, after_s: float) -> None:
    """Start `call`, cancel it, and check that it ends within 2 s, cancelled or done."""
    task = asyncio.ensure_future(call)
    await asyncio.sleep(after_s)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=2)
    expect.true(done, "the call did not end within 2 s of its cancellation")
    if not task.cancelled():
        task.result()
