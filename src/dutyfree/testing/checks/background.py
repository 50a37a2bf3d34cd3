"""Background processes: started, left alone, found again by offset, and ended with their sandbox."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dutyfree.background.process import BackgroundProcess
from dutyfree.background.table import ProcessTable
from dutyfree.contract import Sandbox
from dutyfree.errors import InfraFailed, InvalidRequest, LeaseLost, SandboxReset
from dutyfree.model import Action, Capability, OutputChunk
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import ACTION_TIMEOUT_S, Context, run

KEEP_BYTES = 64 * 1024
UNLIMITED_BYTES = 2**62
MANY = 24


@asynccontextmanager
async def _processes(box: Sandbox) -> AsyncIterator[ProcessTable]:
    """The table of the sandbox's processes, which end with the sandbox after the block."""
    table = ProcessTable(box, itertools.count(1))
    try:
        yield table
    finally:
        tasks = table.end(LeaseLost("the check has ended"))
        await box.destroy()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=10)
            expect.true(not late, f"{len(late)} processes outlive their sandbox")


def _start(
    table: ProcessTable,
    command: str | list[str],
    *,
    stdin: bool = False,
    timeout_s: float = ACTION_TIMEOUT_S,
    cwd: str | None = None,
    keep_bytes: int = KEEP_BYTES,
) -> BackgroundProcess:
    action = Action(command, cwd, {}, None if stdin else b"", timeout_s, UNLIMITED_BYTES)
    return table.start(action, keep_bytes)


async def _chunks(process: BackgroundProcess, offset: int = 0) -> list[OutputChunk]:
    found = []
    while (chunk := await process.read(offset, 4096)) is not None:
        found.append(chunk)
        offset = chunk.end
    return found


async def _until(process: BackgroundProcess, sign: bytes, offset: int = 0) -> bytes:
    seen = b""
    while sign not in seen:
        chunk = await process.read(offset + len(seen), 4096)
        expect.true(chunk is not None, f"the process ended after {seen!r}, without {sign!r}")
        assert chunk is not None
        seen += chunk.data
    return seen


@check("background.output", "a process that is not read runs on; its output, exit code and state are there later")
async def output(context: Context) -> None:
    box = await context.sandbox()
    async with _processes(box) as table:
        process = _start(table, "printf one; sleep 0.3; printf two >&2; sleep 0.3; printf three; exit 5")
        expect.true(process.info().running, "the process does not run after its start")
        expect.exited(await process.wait(), 5)
        chunks = await _chunks(process)
        expect.equal([chunk.stream for chunk in chunks], ["stdout", "stderr", "stdout"], "the streams in order")
        expect.equal(
            [(chunk.offset, chunk.data) for chunk in chunks], [(0, b"one"), (3, b"two"), (6, b"three")], "the output"
        )
        info = process.info()
        expect.equal((info.running, info.exit_code, info.output_bytes), (False, 5, 11), "its state")
        expect.equal([each.id for each in table.all()], [process.id], "the list")
        expect.exited(await process.wait(), 5)


@check("background.attach", "readers come and go at any offset, and the process goes on")
async def attach(context: Context) -> None:
    box = await context.sandbox()
    async with _processes(box) as table:
        process = _start(table, "echo first; read word; echo $word", stdin=True)
        await _until(process, b"first\n")
        reader = context.begin(_chunks(process))
        await asyncio.sleep(0.05)
        reader.cancel()
        await asyncio.wait([reader])
        late = context.begin(_chunks(process, 6))
        expect.true(process.info().running, "a reader that left has ended the process")
        await process.write(b"second\n")
        expect.equal(b"".join(each.data for each in await late), b"second\n", "what a reader at offset 6 gets")
        expect.equal(b"".join(each.data for each in await _chunks(process)), b"first\nsecond\n", "all of the output")
        expect.exited(await process.wait())


@check("background.unread", "output that is not read does not hold the process up; what was dropped is counted")
async def unread(context: Context) -> None:
    box = await context.sandbox()
    size = 3_000_000
    async with _processes(box) as table:
        process = _start(table, f"head -c {size} /dev/zero | tr '\\0' x; printf end")
        expect.exited(await process.wait())
        info = process.info()
        expect.equal((info.output_bytes, info.lost_bytes), (size + 3, size + 3 - KEEP_BYTES), "written and lost bytes")
        first, *rest = await _chunks(process)
        expect.equal((first.offset, first.lost_bytes), (info.lost_bytes, info.lost_bytes), "where what is kept begins")
        expect.equal([each.lost_bytes for each in rest if each.lost_bytes], [], "further losses")
        kept = first.data + b"".join(each.data for each in rest)
        expect.true(kept == b"x" * (KEEP_BYTES - 3) + b"end", "what is kept is not the end of the output")


@check("background.input", "input can be written and ended; without `stdin` a process has an empty one", limit_s=15)
async def input_(context: Context) -> None:
    box = await context.sandbox()
    async with _processes(box) as table:
        process = _start(table, ["cat"], stdin=True)
        await process.write(b"one\x00\xff")
        await _until(process, b"one\x00\xff")
        await process.write(b"two")
        await process.end_input()
        await process.end_input()
        expect.exited(await process.wait())
        expect.equal(b"".join(each.data for each in await _chunks(process)), b"one\x00\xfftwo", "the output")
        silent = _start(table, ["cat"])
        with expect.raises(InvalidRequest, what="writing to a process without input"):
            await silent.write(b"x")
        expect.exited(await asyncio.wait_for(silent.wait(), 10 * context.patience))


@check("background.signal", "a signal reaches the process, and kill ends its whole tree", limit_s=15)
async def signal(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/late"
    async with _processes(box) as table:
        trapper = _start(table, "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.05; done")
        await _until(trapper, b"ready\n")
        await trapper.signal(15)
        expect.exited(await trapper.wait(), 9)
        await _until(trapper, b"caught\n", 6)
        tree = _start(table, f"(setsid sh -c 'sleep 1; echo late > {path}' &); echo ready; sleep 60")
        await _until(tree, b"ready\n")
        await tree.kill()
        expect.equal((await tree.wait()).signal, 9, "the signal of a killed process")
        expect.equal((tree.info().running, tree.info().signal), (False, 9), "its state")
        await asyncio.sleep(1.3)
        expect.true(not (await run(box, ["cat", path])).ok, "a part of the tree went on after kill")
        await tree.kill()
        await tree.signal(15)


@check("background.timeout", "a process past its timeout is killed, and its observation says so")
async def timeout(context: Context) -> None:
    box = await context.sandbox()
    async with _processes(box) as table:
        process = _start(table, "echo ready; sleep 60", timeout_s=0.5)
        seen = await process.wait()
        expect.true(seen.timed_out, "the observation does not say that it timed out")
        expect.equal(await _until(process, b"ready\n"), b"ready\n", "the output before the timeout")
        unlimited = _start(table, ["true"], timeout_s=7 * 24 * 3600.0)
        expect.exited(await unlimited.wait())


@check("background.refused", "what the sandbox refuses is an error of the process, not an exit code")
async def refused(context: Context) -> None:
    box = await context.sandbox()
    async with _processes(box) as table:
        process = _start(table, ["true"], cwd="/conformance/nowhere")
        with expect.raises(InvalidRequest, what="a process in a missing cwd"):
            await process.wait()
        with expect.raises(InvalidRequest, what="reading it"):
            await process.read(0, 100)
        info = process.info()
        expect.equal((info.running, info.exit_code, type(info.error)), (False, None, InvalidRequest), "its state")
        expect.exited(await _start(table, ["true"]).wait())


@check("background.beside", "actions run as usual beside background processes")
async def beside(context: Context) -> None:
    box = await context.sandbox()
    async with _processes(box) as table:
        process = _start(table, "while :; do echo tick; sleep 0.01; done")
        await _until(process, b"tick\n")
        for _ in range(3):
            seen = await run(box, "echo beside")
            expect.equal(seen.stdout, b"beside\n", "the output of an action beside it")
        before = process.info().output_bytes
        await _until(process, b"tick\n", before)
        expect.true(process.info().running, "the process ended with an action")


@check("background.many", "many processes at once keep their outputs apart", limit_s=60)
async def many(context: Context) -> None:
    box = await context.sandbox()
    count = context.times(MANY)
    async with _processes(box) as table:
        line = "i=0; while [ $i -lt 20 ]; do echo {0}-$i; i=$((i+1)); done; read word; echo $word; exit {1}"
        started = [_start(table, line.format(f"p{n}", n), stdin=True) for n in range(count)]
        expect.equal(len({each.id for each in started}), count, "the number of ids")
        for number, process in enumerate(started):
            await process.write(f"bye {number}\n".encode())
        for number, process in enumerate(started):
            expect.exited(await process.wait(), number)
            wanted = "".join(f"p{number}-{i}\n" for i in range(20)) + f"bye {number}\n"
            expect.equal(b"".join(each.data for each in await _chunks(process)), wanted.encode(), "the output")


@check("background.reset", "a reset ends background processes with SandboxReset", needs=(Capability.RESET,))
async def reset(context: Context) -> None:
    box = await context.sandbox()
    async with _processes(box) as table:
        process = _start(table, "echo ready; sleep 60")
        await _until(process, b"ready\n")
        waiter = context.begin(process.wait())
        await asyncio.sleep(0)
        await box.reset()
        with expect.raises(SandboxReset, what="a wait under way"):
            await asyncio.wait_for(waiter, 5 * context.patience)
        with expect.raises(SandboxReset, what="a later wait"):
            await process.wait()
        expect.true(isinstance(process.info().error, SandboxReset), "its state does not name the reset")
        expect.equal(await _until(process, b"ready\n"), b"ready\n", "the output from before the reset")
        expect.exited(await _start(table, ["true"]).wait())


@check("background.destroyed", "the end of the sandbox ends its processes with an error, never with an exit code")
async def destroyed(context: Context) -> None:
    box = await context.sandbox()
    async with _processes(box) as table:
        process = _start(table, "echo ready; sleep 60")
        await _until(process, b"ready\n")
        start_s = time.monotonic()
        await box.destroy()
        with expect.raises(InfraFailed, what="a process whose sandbox was destroyed"):
            await process.wait()
        expect.between(time.monotonic() - start_s, 0, 10 * context.patience, "the time of the destruction, in s,")
        info = process.info()
        expect.equal((info.running, info.exit_code, info.signal), (False, None, None), "its state")
