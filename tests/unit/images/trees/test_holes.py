"""Files of holes: what they say that they hold costs nobody time, memory or disk before somebody can say stop."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from dutyfree.contract import Sandbox
from dutyfree.errors import InvalidRequest
from dutyfree.images.trees import copy_tree, merge_trees
from dutyfree.images.trees.pack import pack
from dutyfree.model import Action, Resources, SandboxSpec, Writes
from dutyfree.removal import remove_tree
from dutyfree.substrates.cell import CellSubstrate
from support.layer_trees import OWNERSHIP

MIB, GIB, EIB = 2**20, 2**30, 2**60
SOON_S = 2.0


@pytest.fixture
def memory() -> Iterator[Path]:
    """A file system on which a file can be of nearly any size."""
    place = Path(tempfile.mkdtemp(prefix="dutyfree-sparse-", dir="/dev/shm"))
    yield place
    remove_tree(place)


def sparse(path: Path, size: int, *places: int) -> None:
    """A file with one byte at each place."""
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        for place in places:
            os.pwrite(file.fileno(), b"x", place)
        os.ftruncate(file.fileno(), size)


class Stopped(Exception):
    pass


def stop_at_once(_bytes: int) -> None:
    raise Stopped


def test_a_file_that_no_disk_can_hold_is_refused_and_named(memory: Path, tmp_path: Path) -> None:
    for size, places in ((7 * EIB, ()), (7 * EIB, (6 * EIB,))):
        sparse(memory / "tree/huge", size, *places)
        with pytest.raises(InvalidRequest, match="'huge' has"):
            copy_tree(memory / "tree", tmp_path / f"copy-{len(places)}")


def test_holes_stay_holes_wherever_they_are(memory: Path, tmp_path: Path) -> None:
    places = (0, 5 * MIB, 5 * MIB + 4096, 3 * GIB - 1)
    sparse(memory / "tree/file", 3 * GIB, *places)
    sparse(memory / "tree/nothing", 3 * GIB)
    copy_tree(memory / "tree", tmp_path / "copy")
    copied = tmp_path / "copy/file"
    assert copied.stat().st_size == 3 * GIB
    assert copied.stat().st_blocks * 512 < MIB
    assert (tmp_path / "copy/nothing").stat().st_blocks == 0
    with copied.open("rb") as file:
        assert [os.pread(file.fileno(), 2, place)[:1] for place in places] == [b"x"] * 4
        assert os.pread(file.fileno(), 4, 2 * GIB) == bytes(4)


def test_holes_and_zeros_give_the_same_archive(memory: Path, tmp_path: Path) -> None:
    places = (0, 300_000, 1_999_999)
    for root in (memory, tmp_path):
        sparse(root / "tree/file", 2_000_001, *places)
        os.utime(root / "tree/file", (1, 1))
        os.utime(root / "tree", (1, 1))
        (root / "tree").chmod(0o755)
        (root / "tree/file").chmod(0o644)
    dense = tmp_path / "tree/file"
    dense.write_bytes(dense.read_bytes())
    os.utime(dense, (1, 1))
    assert dense.stat().st_blocks > (memory / "tree/file").stat().st_blocks
    assert pack(memory / "tree", None, OWNERSHIP) == pack(tmp_path / "tree", None, OWNERSHIP)


def test_copies_are_made_in_pieces_after_each_of_which_they_can_be_ended(memory: Path, tmp_path: Path) -> None:
    (memory / "tree").mkdir()
    (memory / "tree/file").write_bytes(bytes(40 * MIB))
    heard: list[int] = []
    copy_tree(memory / "tree", tmp_path / "copy", on_bytes=heard.append)
    assert sum(heard) == 40 * MIB
    assert max(heard) <= 8 * MIB
    with pytest.raises(Stopped):
        merge_trees([memory / "tree"], tmp_path / "merged", bottom=True, ownership=OWNERSHIP, on_bytes=stop_at_once)


def test_packing_zeros_can_be_ended(memory: Path) -> None:
    sparse(memory / "tree/file", 60 * GIB)
    start = time.monotonic()
    with pytest.raises(Stopped):
        pack(memory / "tree", None, OWNERSHIP, stop_at_once)
    assert time.monotonic() - start < SOON_S
    sparse(memory / "tree/file", 7 * EIB)
    with pytest.raises(InvalidRequest, match="a layer of more than"):
        pack(memory / "tree", None, OWNERSHIP)


@pytest.fixture
async def cells(tmp_path: Path) -> AsyncIterator[CellSubstrate]:
    async with CellSubstrate(store=tmp_path / "store") as substrate:
        yield substrate


async def begin(box: Sandbox, line: str) -> asyncio.Task[object]:
    """Something that runs, so that a snapshot has to copy."""
    assert (await box.run(Action(line))).exit_code == 0
    return asyncio.ensure_future(box.run(Action("sleep 100")))


async def ends_soon(task: asyncio.Task[object]) -> None:
    await asyncio.sleep(0.5)
    assert not task.done()
    start = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert time.monotonic() - start < SOON_S


async def test_a_sandbox_survives_a_file_that_no_snapshot_can_hold(cells: CellSubstrate) -> None:
    async with await cells.create(SandboxSpec()) as box:
        running = await begin(box, "truncate -s 7E /tmp/huge")
        for _ in range(2):
            with pytest.raises(InvalidRequest, match="tmp/huge"):
                await box.snapshot()
            assert (await box.run(Action("echo alive"))).text == "alive\n"
        await box.run(Action("rm /tmp/huge"))
        await (await box.snapshot()).discard()
        running.cancel()


async def test_a_snapshot_of_holes_is_quick_and_its_saving_can_be_cancelled(cells: CellSubstrate) -> None:
    async with await cells.create(SandboxSpec()) as box:
        running = await begin(box, "truncate -s 60G /tmp/holes; echo x >> /tmp/holes")
        start = time.monotonic()
        async with await box.snapshot() as snapshot:
            assert time.monotonic() - start < SOON_S
            await ends_soon(asyncio.ensure_future(snapshot.save()))
        running.cancel()


async def test_a_snapshot_of_much_data_can_be_cancelled(cells: CellSubstrate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 20 MB/s would take 10 s for it."""
    copy = os.copy_file_range

    def slowly(*args: int) -> int:
        time.sleep(min(args[2], 64 * MIB) / (20 * MIB))
        return copy(*args)

    monkeypatch.setattr(os, "copy_file_range", slowly)
    spec = SandboxSpec(writes=Writes.DISK, resources=Resources(disk_bytes=None))
    async with await cells.create(spec) as box:
        running = await begin(box, "head -c 200M /dev/zero > /tmp/data")
        await ends_soon(asyncio.ensure_future(box.snapshot()))
        assert (await box.run(Action("echo alive"))).text == "alive\n"
        running.cancel()
