"""A thousand background processes in ten sandboxes, with readers that come and go at random."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import dutyfree
from dutyfree.testing.memory import resident_bytes

SANDBOXES = 10
PROCESSES = 100
"""In each sandbox."""
LINES = 40
SEED = 20
KIB = 1024
BOUND_BYTES = 64 * KIB
"""The most memory of the host for one process, with a ring that holds a few hundred bytes."""
SCRIPT = """
i=0
while [ $i -lt {lines} ]; do
    echo "{name} out $i"
    echo "{name} err $i" >&2
    i=$((i+1))
    [ $((i % 10)) -eq 0 ] && sleep {pause}
done
exec sleep 1000 {mark}
"""


def wanted(name: str, stream: str) -> bytes:
    return "".join(f"{name} {stream} {number}\n" for number in range(LINES)).encode()


async def follow(box: dutyfree.Box, process_id: str, name: str, dice: random.Random) -> int:
    """Read all lines, in several attachments of random length; returns how many attachments it took."""
    seen = {"stdout": b"", "stderr": b""}
    size_bytes = len(wanted(name, "out")) + len(wanted(name, "err"))
    offset, attachments = 0, 0
    while offset < size_bytes:
        process = box.process(process_id)
        attachments += 1
        reader = asyncio.create_task(read_some(process, offset, dice.randint(1, 12), size_bytes))
        if dice.random() < 0.3:  # detached by a cancellation, at any moment; what it has read is read again
            await asyncio.sleep(dice.random() * 0.05)
            reader.cancel()
            await asyncio.wait([reader])
            continue
        for chunk in await reader:
            assert (chunk.offset, chunk.lost_bytes) == (offset, 0)
            seen[chunk.stream] += chunk.data
            offset = chunk.end
        await asyncio.sleep(dice.random() * 0.05)
    assert seen == {"stdout": wanted(name, "out"), "stderr": wanted(name, "err")}
    assert box.process(process_id).info.running
    return attachments


async def read_some(process: dutyfree.Process, offset: int, count: int, size_bytes: int) -> list[dutyfree.OutputChunk]:
    chunks: list[dutyfree.OutputChunk] = []
    async for chunk in process.output(offset):
        chunks.append(chunk)
        if len(chunks) == count or chunk.end >= size_bytes:
            break
    return chunks


def on_machine(mark: str) -> int:
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += mark.encode() in path.read_bytes()
        except OSError:
            continue
    return found


@pytest.mark.timeout(300)
async def test_a_thousand_processes_in_ten_sandboxes() -> None:
    mark = f"1.{time.monotonic_ns() % 10**9}"
    dice = random.Random(SEED)
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(dutyfree.local(substrate="cell"))
        boxes = [await stack.enter_async_context(host.lease()) for _ in range(SANDBOXES)]
        before_bytes = resident_bytes()
        followers = []
        for box in boxes:
            for number in range(PROCESSES):
                name = f"{box.id}-{number}"
                line = SCRIPT.format(name=name, lines=LINES, pause=round(dice.random(), 2), mark=mark)
                process = await box.start(line)
                followers.append(follow(box, process.id, name, random.Random(dice.random())))
        attachments = await asyncio.gather(*followers)
        grown_bytes = (resident_bytes() - before_bytes) / (SANDBOXES * PROCESSES)
        print(f"{sum(attachments)} attachments; {grown_bytes / KIB:.1f} KiB of the host for one process")
        assert grown_bytes < BOUND_BYTES
        assert [sum(info.running for info in await box.processes()) for box in boxes] == [PROCESSES] * SANDBOXES
        assert on_machine(mark) >= SANDBOXES * PROCESSES
        start_s = time.monotonic()
    print(f"the end of all leases took {time.monotonic() - start_s:.2f} s")
    assert on_machine(mark) == 0
