"""Pause and resume: every process stands still, and what was under way goes on afterwards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from contextlib import suppress

from dutyfree.contract import Sandbox
from dutyfree.errors import DutyfreeError, SandboxPaused
from dutyfree.model import Action, Capability
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run

NEEDS = (Capability.PAUSE, Capability.FILES)
PAUSE_S = 1.0
COUNTER = "n=0; while :; do n=$((n+1)); echo $n > /tmp/count.new; mv /tmp/count.new /tmp/count; sleep 0.02; done"
"""Counts as long as it runs."""


@check("pausing.stands-still", "no process of a paused sandbox runs, and all of them go on afterwards", needs=NEEDS)
async def stands_still(context: Context) -> None:
    box = await context.sandbox()
    await run(box, f"({COUNTER}) >/dev/null 2>&1 &")
    before = await _rising(box)
    await box.pause()
    expect.true(box.paused, "a paused sandbox does not say so")
    await asyncio.sleep(PAUSE_S)
    await box.resume()
    expect.true(not box.paused, "a resumed sandbox says that it is paused")
    # The counter may run a few times between the pause, the resume and the reads.
    expect.between(await _count(box) - before, 0, 0.6 * PAUSE_S / 0.02, "what was counted during a pause")
    await _rising(box)


@check("pausing.calls-are-refused", "new calls of a paused sandbox raise SandboxPaused at once", needs=NEEDS)
async def calls_are_refused(context: Context) -> None:
    box = await context.sandbox()
    session = await box.session() if Capability.SESSIONS in context.capabilities else None
    await box.pause()
    await box.pause()
    start_s = time.monotonic()
    await _refused(box.run(Action("true")), "run")
    await _refused(box.files.read("/etc/passwd"), "a file operation")
    await _refused(_streamed(box), "a stream")
    await _refused(box.session(), "a session")
    if session is not None:
        await _refused(session.run("true"), "a line of a session")
    if Capability.SNAPSHOT in context.capabilities:
        await _refused(box.snapshot(), "a snapshot")
    expect.between(time.monotonic() - start_s, 0, 2, "the time to refuse, in s,")
    await box.resume()
    await box.resume()
    await run(box, "true")
    if session is not None:
        expect.equal((await session.run("echo on")).text, "on\n", "a line after the pause")
        await session.close()


@check("pausing.goes-on", "an action that was under way ends as if there had been no pause", needs=NEEDS)
async def goes_on(context: Context) -> None:
    box = await context.sandbox()
    line = "echo first; read word; echo $word; exit 7"
    async with box.stream(Action(line, timeout_s=30)) as stream:
        chunks = aiter(stream)
        expect.equal((await anext(chunks)).data, b"first\n", "the output before the pause")
        await box.pause()
        await stream.write(b"second\n")
        await asyncio.sleep(PAUSE_S)
        await box.resume()
        expect.equal((await anext(chunks)).data, b"second\n", "the output after the pause")
        expect.equal((await stream.wait()).exit_code, 7, "the exit code")


@check("pausing.timeouts", "a timeout does not count a pause, and still comes after it", needs=NEEDS)
async def timeouts(context: Context) -> None:
    box = await context.sandbox()
    # Both are read by the shell and not by `sleep`, whose own clock may go on.
    waits = "touch /tmp/started; read word; echo done"
    async with box.stream(Action(waits, timeout_s=3)) as stream:
        await _appears(box, "/tmp/started")
        await box.pause()
        await asyncio.sleep(3.5)
        await box.resume()
        await stream.write(b"\n")
        seen = await stream.wait()
    expect.true(not seen.timed_out and seen.exit_code == 0, f"a pause counted towards the timeout: {seen}")
    start_s = time.monotonic()
    async with box.stream(Action("touch /tmp/again; while :; do sleep 0.1; done", timeout_s=3)) as stream:
        await _appears(box, "/tmp/again")
        await box.pause()
        await asyncio.sleep(PAUSE_S)
        await box.resume()
        expect.true((await stream.wait()).timed_out, "an action that was paused has no timeout any more")
    expect.between(time.monotonic() - start_s, 3 + 0.9 * PAUSE_S, 3 + PAUSE_S + 3, "the time of a paused action, in s,")


@check("pausing.destroy", "a paused sandbox can be destroyed, and calls under way end", needs=NEEDS)
async def destroy(context: Context) -> None:
    box = await context.sandbox()
    call = asyncio.ensure_future(box.run(Action("touch /tmp/started; sleep 60")))
    await _appears(box, "/tmp/started")
    await box.pause()
    start_s = time.monotonic()
    await box.destroy()
    expect.between(time.monotonic() - start_s, 0, 5, "the time to destroy a paused sandbox, in s,")
    with suppress(DutyfreeError):
        await asyncio.wait_for(call, 5)
        expect.true(False, "a command ended well in a sandbox that was destroyed")


@check("pausing.cancel", "a call that is cancelled during a pause ends at once", needs=NEEDS)
async def cancel(context: Context) -> None:
    box = await context.sandbox()
    call = asyncio.ensure_future(box.run(Action("touch /tmp/started; sleep 60")))
    await _appears(box, "/tmp/started")
    await box.pause()
    call.cancel()
    done, _ = await asyncio.wait({call}, timeout=2)
    expect.true(bool(done), "a cancelled call waits for the end of the pause")
    await box.resume()
    expect.exited(await box.run(Action("true")))


@check("pausing.reset", "a reset ends a pause", needs=(*NEEDS, Capability.RESET))
async def reset(context: Context) -> None:
    box = await context.sandbox()
    await run(box, "touch /tmp/mine")
    await box.pause()
    await box.reset()
    expect.true(not box.paused, "a sandbox that was reset is paused")
    expect.equal((await box.run(Action("test -e /tmp/mine"))).exit_code, 1, "the exit code of a test for a file")


async def _refused(call: Awaitable[object], what: str) -> None:
    try:
        await asyncio.wait_for(call, 5)
    except SandboxPaused:
        return
    except TimeoutError:
        expect.true(False, f"{what} of a paused sandbox waits")
    expect.true(False, f"{what} of a paused sandbox was not refused")


async def _streamed(box: Sandbox) -> None:
    async with box.stream(Action("true")):
        pass


async def _count(box: Sandbox) -> int:
    return int(await box.files.read("/tmp/count"))


async def _appears(box: Sandbox, path: str) -> None:
    line = 'for i in $(seq 1000); do test -e "$0" && exit; sleep 0.02; done; exit 1'
    expect.exited(await box.run(Action(["sh", "-c", line, path], timeout_s=30)))


async def _rising(box: Sandbox) -> int:
    """The count, once it has risen."""
    await _appears(box, "/tmp/count")
    line = (
        "first=$(cat /tmp/count); for i in $(seq 1000); do now=$(cat /tmp/count); test $now -gt $first && break; done"
    )
    return int((await run(box, f"{line}; test $now -gt $first && echo $now")).text)
