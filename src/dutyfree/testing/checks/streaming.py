"""Streams: reading output and writing input while the command runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

from dutyfree.contract import ActionStream
from dutyfree.errors import InvalidRequest
from dutyfree.model import Action, Chunk, Observation
from dutyfree.testing import expect
from dutyfree.testing.check import check
from dutyfree.testing.context import Context, run
from dutyfree.testing.memory import MIB, bounded_growth


@check("streaming.early", "chunks arrive as they are written, before the command ends")
async def early(context: Context) -> None:
    box = await context.sandbox()
    async with box.stream(Action("echo first; sleep 2; echo second")) as stream:
        start_s = time.monotonic()
        chunks = aiter(stream)
        first = await anext(chunks)
        expect.equal(first, Chunk("stdout", b"first\n"), "the first chunk")
        expect.between(time.monotonic() - start_s, 0, 1.5, "the time to the first chunk, in s,")
        rest = [chunk async for chunk in chunks]
        expect.equal(b"".join(chunk.data for chunk in rest), b"second\n", "the rest")
        expect.exited(await stream.wait())


@check("streaming.order", "each stream's chunks arrive in order and add up to what was written")
async def order(context: Context) -> None:
    box = await context.sandbox()
    lines = [str(number) for number in range(3000)]
    command = f"printf '%s\\n' {' '.join(lines)}; echo error >&2; printf '%s\\n' {' '.join(lines)}"
    async with box.stream(Action(command)) as stream:
        chunks = [chunk async for chunk in stream]
        seen = await stream.wait()
    expected = "".join(f"{line}\n" for line in lines).encode() * 2
    expect.true(_joined(chunks, "stdout") == expected, "stdout is not what was written")
    expect.equal(_joined(chunks, "stderr"), b"error\n", "stderr")
    expect.true(all(chunk.data for chunk in chunks), "there is an empty chunk")
    expect.equal((seen.exit_code, seen.stdout_bytes, seen.stderr_bytes), (0, len(expected), 6), "code and counts")
    expect.equal((seen.stdout, seen.stderr), (b"", b""), "the observation's own output")


@check("streaming.input", "input can be written while output is read")
async def input_while_running(context: Context) -> None:
    box = await context.sandbox()
    async with box.stream(Action(["cat"])) as stream:
        chunks = aiter(stream)
        for word in (b"one\n", b"\x00two\xff\n"):
            await stream.write(word)
            expect.equal(await anext(chunks), Chunk("stdout", word), "the echo")
        await stream.end_input()
        await stream.end_input()
        expect.equal([chunk async for chunk in chunks], [], "the output after the last echo")
        with expect.raises(InvalidRequest, what="writing after the end of the input"):
            await stream.write(b"late")
        expect.exited(await stream.wait())


@check("streaming.input-large", "8 MB of input and output flow at the same time without a deadlock")
async def input_large(context: Context) -> None:
    box = await context.sandbox()
    piece = bytes(range(256)) * 256
    async with box.stream(Action(["cat"])) as stream:

        async def feed() -> None:
            for _ in range(8 * MIB // len(piece)):
                await stream.write(piece)
            await stream.end_input()

        feeding = context.begin(feed())
        total = b"".join([chunk.data async for chunk in stream])
        await feeding
        expect.exited(await stream.wait())
    expect.true(total == piece * (8 * MIB // len(piece)), f"{len(total)} bytes came back, or other ones")


@check("streaming.input-unread", "writing input to a command that has ended is harmless")
async def input_unread(context: Context) -> None:
    box = await context.sandbox()
    async with box.stream(Action(["true"])) as stream:
        await stream.wait()
        await stream.write(b"never read")
        await stream.end_input()
    expect.exited(await run(box, ["true"]))


@check("streaming.stalled-reader", "a stalled reader makes the command wait, and then gets all output")
async def stalled_reader(context: Context) -> None:
    await _stall(context, size_bytes=12 * MIB, stall_s=1.0)


@check(
    "streaming.stalled-reader-long",
    "100 MB with a reader that stalls for 10 s arrive complete, with bounded memory on the host",
    limit_s=120,
    slow=True,
)
async def stalled_reader_long(context: Context) -> None:
    await _stall(context, size_bytes=100 * MIB, stall_s=10.0)


@check("streaming.others-unhindered", "a stalled reader does not delay other actions")
async def others_unhindered(context: Context) -> None:
    box = await context.sandbox()
    async with box.stream(Action(f"head -c {8 * MIB} /dev/zero")) as stream:
        await anext(aiter(stream))
        start_s = time.monotonic()
        for _ in range(5):
            expect.exited(await run(box, ["true"]))
        expect.between(time.monotonic() - start_s, 0, 5, "the time of five concurrent actions, in s,")


@check("streaming.leave", "leaving the block ends the command at once")
async def leave(context: Context) -> None:
    box = await context.sandbox()
    path = f"{await context.scratch(box)}/late"
    start_s = time.monotonic()
    async with box.stream(Action(f"echo here; sleep 1; echo late > {path}; sleep 20")) as stream:
        await anext(aiter(stream))
    expect.between(time.monotonic() - start_s, 0, 2, "the time to leave, in s,")
    await asyncio.sleep(1.5)
    expect.true(not (await run(box, ["cat", path])).ok, "the command went on after its block was left")


@check("streaming.wait-unread", "wait without reading drops the output and still counts it")
async def wait_unread(context: Context) -> None:
    box = await context.sandbox()
    async with box.stream(Action(f"head -c {4 * MIB} /dev/zero; exit 5")) as stream:
        seen = await stream.wait()
    expect.exited(seen, 5)
    expect.equal((seen.stdout, seen.stdout_bytes), (b"", 4 * MIB), "output and count")


@check("streaming.signal", "a signal reaches the command; after the command's end it is ignored")
async def signal(context: Context) -> None:
    for number in (15, 10):
        seen = await _ended_by(context, partial(_send, number=number))
        expect.equal((seen.exit_code, seen.signal), (None, number), "exit code and signal")


@check("streaming.kill", "kill ends the command with SIGKILL")
async def kill(context: Context) -> None:
    seen = await _ended_by(context, lambda stream: stream.kill())
    expect.equal((seen.exit_code, seen.signal, seen.timed_out), (None, 9, False), "exit code, signal, timed_out")


@check("streaming.output-limit", "the output limit also applies to a stream")
async def output_limit(context: Context) -> None:
    box = await context.sandbox()
    async with box.stream(Action(f"head -c {2 * MIB} /dev/zero", output_limit_bytes=1000)) as stream:
        chunks = [chunk async for chunk in stream]
        seen = await stream.wait()
    expect.equal(len(_joined(chunks, "stdout")), 1000, "the output that was passed on")
    expect.equal((seen.truncated, seen.stdout_bytes), (True, 2 * MIB), "the mark and the count")


@check("streaming.timeout", "a timeout ends a stream; the output before it arrives")
async def timeout(context: Context) -> None:
    box = await context.sandbox()
    async with box.stream(Action("echo before; sleep 20", timeout_s=0.5)) as stream:
        chunks = [chunk async for chunk in stream]
        seen = await stream.wait()
    expect.equal(_joined(chunks, "stdout"), b"before\n", "the output before the timeout")
    expect.true(seen.timed_out, "the timeout is not marked")


@check("streaming.cwd-missing", "a stream in a missing cwd is an invalid request")
async def cwd_missing(context: Context) -> None:
    box = await context.sandbox()
    with expect.raises(InvalidRequest, what="a stream in a missing cwd"):
        async with box.stream(Action(["true"], cwd="/conformance/nowhere")) as stream:
            await stream.wait()
    expect.exited(await run(box, ["true"]))


async def _stall(context: Context, *, size_bytes: int, stall_s: float) -> None:
    box = await context.sandbox()
    action = Action(f"head -c {size_bytes} /dev/zero", output_limit_bytes=2 * size_bytes)
    async with bounded_growth(16 * MIB), box.stream(action) as stream:
        chunks = aiter(stream)
        total = len((await anext(chunks)).data)
        await asyncio.sleep(stall_s)
        async for chunk in chunks:
            total += len(chunk.data)
        seen = await stream.wait()
    expect.equal((total, seen.stdout_bytes, seen.truncated), (size_bytes, size_bytes, False), "the output")


async def _ended_by(context: Context, end: Callable[[ActionStream], Awaitable[None]]) -> Observation:
    box = await context.sandbox()
    async with box.stream(Action("echo up; sleep 20")) as stream:
        await anext(aiter(stream))
        await end(stream)
        seen = await stream.wait()
        await end(stream)
    return seen


async def _send(stream: ActionStream, *, number: int) -> None:
    await stream.signal(number)


def _joined(chunks: list[Chunk], stream: str) -> bytes:
    return b"".join(chunk.data for chunk in chunks if chunk.stream == stream)
