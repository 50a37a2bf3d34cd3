"""Metrics: what is measured rises with what is used, and what is not measured is None."""

from __future__ import annotations

import asyncio
import dataclasses
import time

from dutyfree.contract import Sandbox
from dutyfree.model import Action, Capability, Resources, SandboxSpec, Writes
from dutyfree.model.limits import MIB
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run

HELD_BYTES = 32 * MIB


@check("metrics.real", "every number is possible, and what is limited has its limit")
async def real(context: Context) -> None:
    spec = SandboxSpec(resources=Resources(memory_bytes=512 * MIB, pids=200))
    box = await context.sandbox(spec)
    seen = await box.metrics()
    expect.between(seen.taken_at, time.time() - 60, time.time() + 1, "the time of a measurement")
    numbers = [getattr(seen, field.name) for field in dataclasses.fields(seen)]
    expect.true(all(number is None or number >= 0 for number in numbers), f"a number below 0: {seen}")
    lacking = {each.what for each in box.unenforced}
    if Capability.LIMIT_MEMORY in context.capabilities - lacking:
        expect.true(seen.memory_limit_bytes in (None, 512 * MIB), f"another limit of memory: {seen}")
    for now, peak in ((seen.memory_bytes, seen.memory_peak_bytes), (seen.processes, seen.processes_peak)):
        expect.true(now is None or peak is None or peak * 1.5 >= now, f"a peak below what is used now: {seen}")
    if seen.processes is not None:
        expect.between(seen.processes, 1, 200, "the number of processes of a new sandbox")


@check("metrics.cpu", "a second of computing adds a second of processor time")
async def cpu(context: Context) -> None:
    box = await context.sandbox()
    before = (await box.metrics()).cpu_s
    if before is None:
        return
    await box.run(Action("while :; do :; done", timeout_s=2))
    used_s = ((await box.metrics()).cpu_s or 0) - before
    expect.between(used_s, 0.3, 8, "the processor time of two seconds of computing")


@check("metrics.memory", "memory that is taken is counted while it is held, and in the peak afterwards")
async def memory(context: Context) -> None:
    box = await context.sandbox()
    before = (await box.metrics()).memory_bytes
    if before is None:
        return
    # Files in memory: the same on every substrate.
    expect.exited(await run(box, f"head -c {HELD_BYTES} /dev/urandom > /dev/shm/held"))
    held = await box.metrics()
    expect.exited(await run(box, "rm /dev/shm/held"))
    expect.true((held.memory_bytes or 0) > before + HELD_BYTES * 0.8, f"what is held is not counted: {before}, {held}")
    after = await box.metrics()
    if after.memory_peak_bytes is not None:
        expect.true(after.memory_peak_bytes > before + HELD_BYTES * 0.8, f"the peak was forgotten: {after}")


@check("metrics.processes", "processes are counted")
async def processes(context: Context) -> None:
    box = await context.sandbox()
    before = (await box.metrics()).processes
    if before is None:
        return
    await run(box, "for i in 1 2 3 4 5 6 7 8; do sleep 60 >/dev/null 2>&1 & done")
    seen = await box.metrics()
    expect.between((seen.processes or 0) - before, 8, 12, "the processes that were added")


@check("metrics.disk", "what is written is counted", needs=(Capability.FILES,))
async def disk(context: Context) -> None:
    box = await context.sandbox(SandboxSpec(writes=Writes.MEMORY))
    before = (await box.metrics()).disk_bytes
    if before is None:
        return
    await box.files.write("/var/tmp/some", bytes(4 * MIB))
    expect.between(((await box.metrics()).disk_bytes or 0) - before, 4 * MIB, 6 * MIB, "the bytes that were written")


@check("metrics.at-once", "many measurements at the same time disturb nothing")
async def at_once(context: Context) -> None:
    box = await context.sandbox()
    await asyncio.gather(_busy(box), *(box.metrics() for _ in range(50)))


async def _busy(box: Sandbox) -> None:
    for _ in range(5):
        expect.exited(await run(box, "true"))
