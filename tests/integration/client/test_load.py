"""One sandbox under load: many actions, much output, a reader that stalls. Memory stays bounded on both sides."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree.client.box import Box

MIB = 2**20
BOUND_BYTES = 24 * MIB


@pytest.fixture
async def box() -> AsyncIterator[Box]:
    async with dutyfree.local(substrate="cell") as host, host.lease() as leased:
        yield leased


def rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def guest_pid(box: Box) -> int:
    pid: int = box._sandbox.pid  # type: ignore[attr-defined]
    assert Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"dutyfree-guest\0")
    return pid


async def test_two_hundred_actions_at_once(box: Box) -> None:
    async def one(number: int) -> None:
        seen = await box.run(f"sleep 0.2; echo out {number}; echo err {number} >&2; exit {number % 100}")
        assert seen.stdout == f"out {number}\n".encode()
        assert seen.stderr == f"err {number}\n".encode()
        assert seen.exit_code == number % 100

    before = rss_bytes(guest_pid(box))
    await asyncio.gather(*(one(number) for number in range(200)))
    grown = rss_bytes(guest_pid(box)) - before
    print(f"200 actions at once: the guest grew by {grown / MIB:.2f} MiB")
    assert grown < BOUND_BYTES


async def test_a_hundred_megabytes_of_output(box: Box) -> None:
    size = 100 * 1000 * 1000
    host, guest = rss_bytes(os.getpid()), rss_bytes(guest_pid(box))
    total, peak_host, peak_guest = 0, 0, 0
    async with box.stream(f"head -c {size} /dev/zero", output_limit_bytes=2 * size) as stream:
        async for chunk in stream:
            total += len(chunk.data)
            assert not chunk.data.strip(b"\0")
            peak_host = max(peak_host, rss_bytes(os.getpid()) - host)
            peak_guest = max(peak_guest, rss_bytes(guest_pid(box)) - guest)
        seen = await stream.wait()
    print(f"100 MB: host grew by {peak_host / MIB:.2f} MiB, the guest by {peak_guest / MIB:.2f} MiB")
    assert (total, seen.stdout_bytes, seen.truncated, seen.exit_code) == (size, size, False, 0)
    assert peak_host < BOUND_BYTES
    assert peak_guest < BOUND_BYTES


async def test_a_reader_that_stalls_for_ten_seconds(box: Box) -> None:
    size = 50 * 1000 * 1000
    host, guest = rss_bytes(os.getpid()), rss_bytes(guest_pid(box))
    async with box.stream(f"head -c {size} /dev/zero", output_limit_bytes=2 * size) as stream:
        await asyncio.sleep(10)
        grown_host, grown_guest = rss_bytes(os.getpid()) - host, rss_bytes(guest_pid(box)) - guest
        assert (await box.run("echo others go on")).text == "others go on\n"
        total = sum([len(chunk.data) async for chunk in stream])
        seen = await stream.wait()
    print(f"stalled for 10 s: host grew by {grown_host / MIB:.2f} MiB, the guest by {grown_guest / MIB:.2f} MiB")
    assert (total, seen.stdout_bytes, seen.exit_code) == (size, size, 0)
    assert grown_host < BOUND_BYTES
    assert grown_guest < BOUND_BYTES
