"""Reset: files, processes and names of earlier use are gone, and the sandbox is like a new one."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from dutyfree.contract import Sandbox
from dutyfree.errors import InfraFailed, SandboxGone, SandboxReset, SessionEnded
from dutyfree.model import Action, Capability, Network, Phase, Resources, SandboxSpec
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.checks.leaks import nothing_left
from dutyfree.testing.context import Context, run
from dutyfree.testing.inventory import differences, inventory
from dutyfree.testing.memory import MIB
from dutyfree.testing.scripts import DAEMONS, NAMES, VANDALISM
from dutyfree.trace import SpanRecorder, now_ns

NEEDS = (Capability.RESET,)
RESETS = 50
SPARE_DESCRIPTORS = 4
"""How much the number of open descriptors may vary because some are just being opened or closed."""


@check("reset.files", "after a reset all files are as in a new sandbox with the same spec", needs=NEEDS, limit_s=60)
async def files(context: Context) -> None:
    for upper in context.writable_places:
        spec = SandboxSpec(writes=upper)
        box = await context.sandbox(spec)
        pristine = await inventory(await context.sandbox(spec))
        expect.exited(await run(box, VANDALISM))
        expect.true(differences(await inventory(box), pristine), "the sandbox cannot be changed")
        await box.reset()
        left = differences(await inventory(box), pristine)
        expect.equal(left, [], f"what differs from a new sandbox ({upper.value})")


@check("reset.usable", "after a reset the sandbox has the same id, is alive, and everything works in it", needs=NEEDS)
async def usable(context: Context) -> None:
    box = await context.sandbox()
    name = box.id
    await box.reset()
    expect.equal((box.id, box.alive), (name, True), "the id and whether it is alive")
    expect.equal((await run(box, ["cat"], stdin=b"in")).stdout, b"in", "the output of an action")
    async with box.stream(Action("echo streamed")) as stream:
        expect.equal([chunk.data async for chunk in stream], [b"streamed\n"], "the output of a stream")
    if Capability.FILES in context.capabilities:
        await box.files.write("/tmp/after", b"after")
        expect.equal(await box.files.read("/tmp/after"), b"after", "the file")
    if Capability.SESSIONS in context.capabilities:
        async with await box.session() as shell:
            expect.equal((await shell.run("A=x; echo $A")).text, "x\n", "the output of a session")


@check("reset.processes", "after a reset no earlier process runs, however it was started", needs=NEEDS)
async def processes(context: Context) -> None:
    box, mark = await context.sandbox(), f"6{time.monotonic_ns() % 10**9}"
    at_first = await _commands(box)
    expect.exited(await run(box, DAEMONS.format(mark=mark)))
    expect.true(mark in await _commands(box), "nothing was left running before the reset")
    await box.reset()
    expect.equal(await _commands(box), at_first, "what runs after the reset")
    if Capability.HOST_PROCESSES in context.capabilities:

        async def is_gone() -> bool:
            return not _on_host(mark)

        await expect.soon(is_gone, "earlier processes still run on the host", within_s=2)


@check("reset.under-way", "a reset makes running actions and streams raise SandboxReset", needs=NEEDS)
async def under_way(context: Context) -> None:
    box = await context.sandbox()
    action = context.begin(run(box, ["sleep", "15"]))

    async def read() -> None:
        async with box.stream(Action("echo ready; sleep 15")) as stream:
            async for _ in stream:
                started.set()
            await stream.wait()

    started = asyncio.Event()
    reader = context.begin(read())
    await started.wait()
    await box.reset()
    for name, task in (("run", action), ("stream", reader)):
        with expect.raises(SandboxReset, what=f"a {name} under way"):
            await asyncio.wait_for(task, 5)
    expect.true(box.alive, "the sandbox is not alive")
    expect.exited(await run(box, ["true"]))


@check(
    "reset.files-under-way",
    "a reset makes a running transfer raise SandboxReset, unless it has ended",
    needs=(*NEEDS, Capability.FILES),
)
async def files_under_way(context: Context) -> None:
    box, folder = await context.sandbox(), context.folder()
    (folder / "big").write_bytes(bytes(64 * MIB))
    upload = context.begin(box.files.upload(folder / "big", "/tmp/big"))
    await asyncio.sleep(0.01)
    await box.reset()
    with suppress(SandboxReset):
        await asyncio.wait_for(upload, 5)
    expect.true(not (await run(box, ["test", "-e", "/tmp/big"])).ok, "the file is there after the reset")


@check(
    "reset.meanwhile",
    "an action that starts during a reset runs in a clean sandbox or raises SandboxReset",
    needs=NEEDS,
)
async def meanwhile(context: Context) -> None:
    box = await context.sandbox()
    for _ in range(context.times(5)):
        expect.exited(await run(box, "echo dirt > /tmp/dirt"))
        reset = context.begin(box.reset())
        while not reset.done():
            with suppress(SandboxReset):
                await run(box, ["true"])
        await reset
        expect.true(not (await run(box, ["test", "-e", "/tmp/dirt"])).ok, "the file is there after the reset")


@check("reset.sessions", "a reset ends earlier sessions", needs=(*NEEDS, Capability.SESSIONS))
async def sessions(context: Context) -> None:
    box = await context.sandbox()
    shell, busy = await box.session(), await box.session()
    expect.exited(await shell.run("export A=secret; cd /tmp; sleep 600 & true"))
    line = context.begin(busy.run("sleep 15"))
    await asyncio.sleep(0.1)
    await box.reset()
    with expect.raises(SandboxReset, what="a line under way"):
        await asyncio.wait_for(line, 5)
    for each in (shell, busy):
        expect.true(not each.alive, "an earlier session is alive")
        with expect.raises(SessionEnded, what="a line in an earlier session"):
            await each.run("true")
        await each.close()
    async with await box.session() as fresh:
        expect.equal(
            (await fresh.run("echo ${A-unset}; jobs")).text, "unset\n", "the variables and jobs of a new session"
        )


@check("reset.terminals", "a reset hangs up earlier terminals", needs=(*NEEDS, Capability.TERMINALS))
async def terminals(context: Context) -> None:
    box = await context.sandbox()
    terminal = await box.terminal("trap '' HUP; echo ready; sleep 600")
    said = b""
    while not said.endswith(b"\n"):
        said += await terminal.read()
    await box.reset()
    with expect.raises(SandboxReset, what="waiting for an earlier command"):
        await asyncio.wait_for(terminal.wait(), 5)
    with suppress(SandboxReset):
        expect.equal(await terminal.read(), b"", "the output of an earlier terminal")
    await terminal.close()


@check(
    "reset.names", "after a reset earlier ports, sockets, shared memory and message queues are free again", needs=NEEDS
)
async def names(context: Context) -> None:
    networks = [Network.NONE] + [Network.HOST] * (Capability.HOST_NETWORK in context.capabilities)
    for network in networks:
        box = await context.sandbox(SandboxSpec(network=network))
        if not (await run(box, "command -v python3")).ok:
            raise expect.NotRun("this check needs python3 in the sandbox")
        seen = await run(box, ["python3", "-c", NAMES, "0"])
        expect.exited(seen)
        port = seen.text.strip()
        expect.true(not (await run(box, ["python3", "-c", NAMES, port])).ok, "the names could be taken twice")
        await box.reset()
        again = await run(box, ["python3", "-c", NAMES, port])
        expect.true(again.ok, f"a name is still taken after the reset (network {network.value}): {again.stderr!r}")
        await box.destroy()


@check("reset.environment", "after a reset environment, cwd, hostname and limits are as in a new sandbox", needs=NEEDS)
async def environment(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(env={"FROM_SPEC": "spec"}, hostname="made"))
    line = "env | sort; pwd; uname -n; umask; ulimit -a; cat /proc/sys/kernel/shmmax; id"
    before = await run(box, line)
    expect.true(
        b"FROM_SPEC=spec" in before.stdout and b"made" in before.stdout,
        "the sandbox does not show its spec before the reset",
    )
    await run(
        box, "hostname other; echo 4096 > /proc/sys/kernel/shmmax; cd / && mv $OLDPWD /moved-away", env={"B": "x"}
    )
    await box.reset()
    after = await run(box, line)
    expect.equal(after.stdout, before.stdout, "what is seen after the reset")


@check(
    "reset.disk", "after a reset a full disk is empty, and its limit still holds", needs=(*NEEDS, Capability.LIMIT_DISK)
)
async def disk(context: Context) -> None:
    for upper in context.writable_places:
        box = await context.sandbox(SandboxSpec(Resources(disk_bytes=8 * MIB), writes=upper))
        if any(item.what is Capability.LIMIT_DISK for item in box.unenforced):
            continue  # the sandbox itself reports that it does not enforce this limit
        for number in range(2):
            expect.exited(await run(box, f"head -c 4000000 /dev/zero > /tmp/fits-{number}"))
            full = await run(box, f"head -c {32 * MIB} /dev/zero > /tmp/big-{number}")
            expect.true(full.disk_full, "disk_full is not set")
            await box.reset()


@check("reset.pids", "the process limit holds after a reset", needs=(*NEEDS, Capability.LIMIT_PIDS))
async def pids(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(Resources(pids=32)))
    line = "i=0; while [ $i -lt 64 ]; do sleep 60 & i=$((i+1)); done; exit 1"
    for _ in range(2):
        expect.true((await run(box, line)).pids_limited, "pids_limited is not set")
        await box.reset()
        expect.exited(await run(box, "sleep 0 & sleep 0 & wait"))


@check("reset.memory", "the memory limit holds after a reset", needs=(*NEEDS, Capability.LIMIT_MEMORY))
async def memory(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(Resources(memory_bytes=64 * MIB)))
    for _ in range(2):
        seen = await run(box, "dd if=/dev/zero of=/dev/null bs=256M count=1")
        expect.true(not seen.ok and seen.oom_killed, f"oom_killed is not set: {seen.exit_code}, {seen.stderr!r}")
        await box.reset()
        after = await run(box, "dd if=/dev/zero of=/dev/null bs=8M count=1")
        expect.equal((after.exit_code, after.oom_killed), (0, False), "an action within the limit, after the reset")


@check("reset.at-once", "concurrent resets run one after the other", needs=NEEDS)
async def at_once(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, "echo dirt > /tmp/dirt; sleep 600 & true"))
    await asyncio.gather(*(box.reset() for _ in range(4)))
    expect.true(box.alive, "the sandbox is not alive")
    expect.equal((await run(box, "ls /tmp")).stdout, b"", "what is in /tmp")


@check("reset.others", "a reset does not affect other sandboxes", needs=NEEDS)
async def others(context: Context) -> None:
    box, other = await context.sandbox(), await context.sandbox()
    expect.exited(await run(other, "echo kept > /tmp/kept"))
    action = context.begin(run(other, "sleep 0.3; cat /tmp/kept"))
    await box.reset()
    expect.equal((await action).stdout, b"kept\n", "what the other sandbox's action saw")


@check("reset.span", "the listener gets one span of the phase RESET for each reset", needs=NEEDS)
async def span(context: Context) -> None:
    recorder = SpanRecorder()
    box = await context.sandbox(on_span=recorder)
    start_ns = now_ns()
    await box.reset()
    end_ns = now_ns()
    spans = [span for span in recorder.spans if span.phase is Phase.RESET]
    expect.equal(len(spans), 1, "the number of spans")
    expect.equal(spans[0].sandbox, box.id, "the sandbox of the span")
    expect.true(start_ns <= spans[0].start_ns <= spans[0].end_ns <= end_ns, "the span leaves the call's own interval")


@check("reset.gone", "a destroyed or dead sandbox cannot be reset", needs=NEEDS)
async def gone(context: Context) -> None:
    box = await context.sandbox()
    await box.destroy()
    with expect.raises(SandboxGone, what="reset after destroy"):
        await box.reset()
    dead = await context.sandbox()
    if context.kill(dead):
        with expect.raises(SandboxGone, InfraFailed, what="reset of a sandbox that was killed"):
            await asyncio.sleep(0.2)
            await dead.reset()
        expect.true(not dead.alive, "a sandbox that was killed is alive again")


@check("reset.cancelled", "a sandbox is clean or gone after a cancelled reset, never dirty", needs=NEEDS, limit_s=60)
async def cancelled(context: Context) -> None:
    async for box, reset in _at_moments(context):
        reset.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(reset, 10)
        if not box.alive:
            with expect.raises(SandboxGone, what="run after a cancelled reset"):
                await run(box, ["true"])
        else:
            expect.equal((await run(box, "ls /tmp")).stdout, b"", "what is in /tmp after a cancelled reset")


@check(
    "reset.cancelled-waiting",
    "the same holds for a reset that is cancelled while it waits for a snapshot",
    needs=(*NEEDS, Capability.SNAPSHOT),
)
async def cancelled_waiting(context: Context) -> None:
    async with _dirty(context) as box:
        expect.exited(await run(box, "head -c 60000000 /dev/zero > /tmp/large"))
        taking = context.begin(box.snapshot())
        await asyncio.sleep(0.002)
        reset = context.begin(box.reset())
        await asyncio.sleep(0)
        reset.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(reset, 10)
        with suppress(SandboxGone, InfraFailed):
            await (await taking).discard()
        if box.alive:
            expect.equal((await run(box, "ls /tmp")).stdout, b"", "what is in /tmp after a cancelled reset")


@check("reset.destroyed", "a sandbox can be destroyed at any moment of its reset", needs=NEEDS, limit_s=60)
async def destroyed(context: Context) -> None:
    async for box, reset in _at_moments(context):
        await box.destroy()
        expect.true(not box.alive, "the sandbox is alive after destroy")
        with suppress(SandboxGone, InfraFailed):
            await asyncio.wait_for(reset, 10)
        expect.true(not box.alive, "the sandbox is alive after destroy, once its reset has ended")


@check(
    "reset.leaks",
    f"{RESETS} resets, and cancelled ones, leave nothing behind",
    needs=(*NEEDS, Capability.HOST_PROCESSES),
    limit_s=90,
)
async def nothing_leaks(context: Context) -> None:
    async with nothing_left(context):
        box = await context.sandbox()
        counts = []
        for _ in range(RESETS):
            expect.exited(await run(box, "(sleep 600 &); echo x > /tmp/x"))
            await box.reset()
            counts.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208 - names alone
        expect.true(
            counts[-1] <= counts[4] + SPARE_DESCRIPTORS, f"{RESETS - 5} resets leaked descriptors: {counts[4:]}"
        )
        await box.destroy()
        await cancelled.attempt(context)
        await destroyed.attempt(context)


@asynccontextmanager
async def _dirty(context: Context) -> AsyncIterator[Sandbox]:
    box = await context.sandbox()
    expect.exited(await run(box, "echo dirt > /tmp/dirt; (sleep 600 &)"))
    try:
        yield box
    finally:
        await box.destroy()


async def _at_moments(context: Context) -> AsyncIterator[tuple[Sandbox, asyncio.Task[None]]]:
    """Yield dirty sandboxes, each at a different moment of its reset, the last ones shortly after it."""
    async with _dirty(context) as box:
        start_s = time.monotonic()
        await box.reset()
        reset_s = time.monotonic() - start_s
    moments = context.times(8)
    for moment in range(moments):
        async with _dirty(context) as box:
            reset = context.begin(box.reset())
            await asyncio.sleep(1.2 * reset_s * moment / (moments - 1))
            yield box, reset


async def _commands(box: Sandbox) -> str:
    """The command lines of all processes in the sandbox, without those of this query."""
    seen = await run(
        box, "for each in /proc/[0-9]*; do [ $each = /proc/$$ ] || tr '\\0' ' ' < $each/cmdline; echo; done"
    )
    return "\n".join(sorted(line for line in seen.text.splitlines() if line and not line.startswith("tr ")))


def _on_host(mark: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(str(path))
    return found
