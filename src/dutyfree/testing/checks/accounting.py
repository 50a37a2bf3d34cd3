"""Timing: spans nest, add up to the wall time, and are accurate."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from dutyfree.contract import Sandbox
from dutyfree.model import Action, Capability, Isolation, Observation, Phase, Span
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run
from dutyfree.testing.memory import MIB
from dutyfree.trace import SpanRecorder, account, now_ns


@check("accounting.action-adds-up", "an action's spans follow each other and add up to its wall time")
async def action_adds_up(context: Context) -> None:
    box = await context.sandbox()
    for command in (["true"], ["sleep", "0.1"], ["cat"]):
        start_ns = now_ns()
        seen = await run(box, command)
        end_ns = now_ns()
        _expect_contiguous(seen)
        first, last = seen.spans[0], seen.spans[-1]
        expect.true(start_ns <= first.start_ns <= last.end_ns <= end_ns, "the spans leave the call's own interval")
        expect.true(all(span.sandbox == box.id for span in seen.spans), "a span names another sandbox")


@check("accounting.execute", "execute is the time that the command itself took")
async def execute(context: Context) -> None:
    box = await context.sandbox()
    seen = await run(box, ["sleep", "0.2"])
    expect.between(seen.execute_ms, 195, 600 * context.patience, "execute of `sleep 0.2`, in ms,")
    quick = await run(box, ["true"])
    expect.between(quick.execute_ms, 0, 150 * context.patience, "execute of `true`, in ms,")


@check("accounting.execute-timeout", "execute of an action that timed out is about its timeout")
async def execute_timeout(context: Context) -> None:
    seen = await run(await context.sandbox(), ["sleep", "20"], timeout_s=0.5)
    expect.between(seen.execute_ms, 450, 2000 * context.patience, "execute, in ms,")
    _expect_contiguous(seen)


@check("accounting.lifecycle", "the listener gets one span each for creation, readiness and destruction, in order")
async def lifecycle(context: Context) -> None:
    recorder = SpanRecorder()
    start_ns = now_ns()
    box = await context.sandbox(on_span=recorder)
    await box.destroy()
    await box.destroy()
    end_ns = now_ns()
    outer = [span for span in recorder.spans if not any(_holds(other, span) for other in recorder.spans)]
    outer.sort(key=lambda span: span.start_ns)
    expect.equal([span.phase for span in outer], [Phase.CREATE, Phase.READY, Phase.DESTROY], "the outermost phases")
    for span in recorder.spans:
        expect.equal(span.sandbox, box.id, "the sandbox of a span")
        expect.true(start_ns <= span.start_ns <= span.end_ns <= end_ns, f"a {span.phase} span leaves the interval")


@check("accounting.spans-nest", "the spans of one sandbox nest or follow each other, and never overlap partly")
async def spans_nest(context: Context) -> None:
    recorder = SpanRecorder()
    box = await context.sandbox(on_span=recorder)
    for _ in range(3):
        await run(box, ["true"])
    await box.destroy()
    spans = recorder.spans
    for one in spans:
        for other in spans:
            straddle = one.start_ns < other.start_ns < one.end_ns < other.end_ns
            expect.true(not straddle, f"a {one.phase} span and a {other.phase} span overlap partly")


@check("accounting.ledger", "the ledger of a sandbox's whole life adds up to its wall time and includes execution")
async def ledger(context: Context) -> None:
    recorder = SpanRecorder()
    start_ns = now_ns()
    box = await context.sandbox(on_span=recorder)
    seen = [await run(box, ["sleep", "0.1"]) for _ in range(2)]
    await box.destroy()
    spans = {*recorder.spans, *(span for one in seen for span in one.spans)}
    whole = account(spans, start_ns, now_ns())
    expect.equal(sum(whole.by_phase.values()), whole.wall_ns, "the sum of the phases, in ns,")
    expect.between(whole.execute_ns / 1e6, 195, 1200 * context.patience, "the execution in the ledger, in ms,")
    expect.true(
        whole.unattributed_ns <= whole.wall_ns // 2, f"{whole.unattributed_ns} ns of {whole.wall_ns} are unattributed"
    )


@check("accounting.no-listener", "a sandbox works without a span listener")
async def no_listener(context: Context) -> None:
    box = await context.sandbox(on_span=None)
    expect.exited(await run(box, ["true"]))
    await box.destroy()


@check("accounting.concurrent", "the spans of concurrent actions stay separate")
async def concurrent(context: Context) -> None:
    box = await context.sandbox()
    durations = [0.1 + number / 20 for number in range(10)]
    seen = await asyncio.gather(*(_slept(box, duration) for duration in durations))
    for duration, one in zip(durations, seen, strict=True):
        most_ms = duration * 1000 + 1500 * context.patience
        expect.between(one.execute_ms, duration * 1000 - 5, most_ms, "execute, in ms,")
        _expect_contiguous(one)


@check("accounting.stream", "a stream's observation has the same timing as an action's")
async def stream(context: Context) -> None:
    box = await context.sandbox()
    async with box.stream(Action("sleep 0.2; echo x")) as running:
        async for _ in running:
            pass
        seen = await running.wait()
    expect.between(seen.execute_ms, 195, 1500 * context.patience, "execute, in ms,")
    _expect_contiguous(seen)


@check(
    "accounting.cpu",
    "CPU time and peak memory are those of the command: high for a busy one, low for an idle one",
    needs=(Capability.HOST_PROCESSES,),
)
async def cpu(context: Context) -> None:
    box = await context.sandbox()
    busy = await run(box, "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done")
    expect.between(busy.cpu_ms, 10, busy.execute_ms * 4, "the CPU time of a busy loop, in ms,")
    idle = await run(box, ["sleep", "0.3"])
    expect.between(idle.cpu_ms, 0, 100 * context.patience, "the CPU time of a sleep, in ms,")
    large = await run(box, "dd if=/dev/zero of=/dev/null bs=64M count=1")
    expect.between(large.peak_memory_bytes, 64 * 1024**2, 96 * 1024**2, "the peak memory of 64 MiB, in bytes,")


@check("accounting.usage", "what a sandbox takes of the machine, where it is measured, follows what a command holds")
async def usage(context: Context) -> None:
    box = await context.sandbox()
    expect.exited(await run(box, ["true"]))
    before_bytes = await _memory_bytes(box)
    if before_bytes is None:
        return
    # A virtual machine takes as much memory as its guest ever used, so that more use may not make it grow.
    wait_s = 5.0 * context.patience
    is_exact = context.substrate.isolation < Isolation.MICROVM
    grown_bytes = before_bytes + 16 * MIB if is_exact else 32 * MIB

    async def has_grown() -> bool:
        return (await _memory_bytes(box) or 0) >= grown_bytes

    async def has_shrunk() -> bool:
        return (await _memory_bytes(box) or 0) < grown_bytes

    # dd fills its buffer, and then waits, because sleep does not read from the pipe.
    async with box.stream(Action("dd if=/dev/zero bs=32M count=1 | sleep 60")):
        await expect.soon(has_grown, "the usage does not grow by 16 MiB when a command holds 32 MiB", within_s=wait_s)
    if is_exact:
        await expect.soon(has_shrunk, "the usage does not shrink when the command has ended", within_s=wait_s)


async def _memory_bytes(box: Sandbox) -> int | None:
    usage = box.usage()
    return None if usage is None else usage.memory_bytes


async def _slept(box: Sandbox, duration_s: float) -> Observation:
    return await run(box, ["sleep", f"{duration_s:.3f}"])


def _expect_contiguous(seen: Observation) -> None:
    spans = seen.spans
    expect.equal([span.phase for span in spans], [Phase.DISPATCH, Phase.EXECUTE, Phase.OBSERVE], "the phases")
    for span, following in pairwise(spans):
        expect.equal(following.start_ns, span.end_ns, "the start of the following span")
    wall_ns = spans[-1].end_ns - spans[0].start_ns
    expect.equal(sum(span.end_ns - span.start_ns for span in spans), wall_ns, "the sum of the spans, in ns,")
    expect.true(
        0 <= seen.timing.execute_ns <= wall_ns, f"execute ({seen.timing.execute_ns} ns) is outside wall ({wall_ns} ns)"
    )


def _holds(outer: Span, inner: Span) -> bool:
    return outer is not inner and outer.start_ns <= inner.start_ns and inner.end_ns <= outer.end_ns
