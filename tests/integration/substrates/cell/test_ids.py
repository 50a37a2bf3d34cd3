"""Ranges of user ids: one for each cell of the machine, whichever process made it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import dutyfree
from dutyfree import claims
from dutyfree.images.ownership import SUBORDINATE_COUNT, SUBORDINATE_IDS, is_root
from dutyfree.model import Capability
from dutyfree.substrates.cell.ids import RANGES, IdRanges

pytestmark = pytest.mark.skipif(not is_root(), reason="only root has ranges of ids to give")

ANOTHER = """
import asyncio, contextlib, json, sys, dutyfree

async def main():
    async with dutyfree.local("cell") as host, contextlib.AsyncExitStack() as stack:
        boxes = [await stack.enter_async_context(host.lease()) for _ in range(3)]
        print(json.dumps([(await box.run("cat /proc/self/uid_map")).text.split()[1] for box in boxes]), flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


async def first_id(box: dutyfree.Box) -> int:
    return int((await box.run(["cat", "/proc/self/uid_map"])).text.split()[1])


async def test_cells_of_different_processes_have_different_ids() -> None:
    command = [sys.executable, "-c", ANOTHER]
    others = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)]  # noqa: ASYNC220
    try:
        answers = [await asyncio.to_thread(other.stdout.readline) for other in others if other.stdout]
        seen = [int(first) for answer in answers for first in json.loads(answer)]
        async with dutyfree.local("cell") as host, host.lease() as box:
            assert Capability.OWN_IDS in host.capabilities, "this kernel cannot: is it older than 6.3?"
            seen.append(await first_id(box))
        assert len(set(seen)) == 7
        assert SUBORDINATE_IDS not in seen, "the ids that files on disk belong to are no cell's"
    finally:
        for other in others:
            other.send_signal(signal.SIGKILL)
            other.communicate()


async def test_a_cell_that_ends_gives_its_ids_to_the_next_one() -> None:
    async with dutyfree.local("cell") as host:
        seen = []
        for _ in range(3):
            async with host.lease() as box:
                seen.append(await first_id(box))
        assert len(set(seen)) == 1


async def test_files_keep_their_owners_from_one_range_to_another() -> None:
    async with dutyfree.local("cell") as host, host.lease() as box:
        await box.run("touch /tmp/a /tmp/b && chown 1000:1001 /tmp/a")
        [fork] = await box.fork(1)
        assert await first_id(fork) != await first_id(box)
        assert (await fork.run("stat -c %u:%g /tmp/a /tmp/b")).text == "1000:1001\n0:0\n"
        await fork.run("chown 2000 /tmp/b")
        assert (await fork.run("stat -c %u:%g /tmp/b")).text == "2000:0\n"


@pytest.mark.alone  # it takes all ranges of the machine, which cells of other tests need
async def test_without_a_free_range_cells_share_one() -> None:
    async with dutyfree.local("cell") as host:
        taken = IdRanges(claims.state_base() / "ids")
        try:
            while taken.take() is not None:
                pass
            async with host.lease() as box:
                assert await first_id(box) == SUBORDINATE_IDS
                assert [gap.what for gap in box.unenforced] == [Capability.OWN_IDS]
                assert (await box.run("touch /tmp/a && stat -c %u /tmp/a")).text == "0\n"
        finally:
            taken.close()
        async with host.lease() as box:
            assert await first_id(box) != SUBORDINATE_IDS


def test_no_range_is_given_twice(tmp_path: Path) -> None:
    one, other = IdRanges(tmp_path / "ids"), IdRanges(tmp_path / "ids")
    try:
        taken = [ranges.take() for _ in range(300) for ranges in (one, other)]
        numbers = [each.number for each in taken if each is not None]
        assert len(set(numbers)) == 600
        assert all(0 < number < RANGES for number in numbers)
        assert max(each.account for each in taken if each is not None) < 2**31
        for each in taken[::2]:
            assert each is not None
            one.give_back(each)
        again = [other.take() for _ in range(44)]  # those that the first does not keep for itself
        assert all(each is not None for each in again)
        assert SUBORDINATE_COUNT == 65536
    finally:
        one.close()
        other.close()
