"""Files of holes: what they say that they hold costs nobody time, memory or disk before somebody can say stop."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest
from dutyfree.images.trees.layers import copy_tree, merge_trees
from dutyfree.images.trees.pack import pack
from dutyfree.removal import remove_tree
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
