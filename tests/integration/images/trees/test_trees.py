"""Layer trees as root: other file systems, device nodes, other users."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree.errors import InvalidRequest
from dutyfree.images.trees.layers import copy_tree, merge_trees
from dutyfree.removal import remove_tree
from support.layer_trees import IS_ROOT, OWNERSHIP, described, make_rich_tree

root_only = pytest.mark.skipif(not IS_ROOT, reason="only root can do this")


@pytest.fixture
def rich(tmp_path: Path) -> Path:
    return make_rich_tree(tmp_path / "rich")


@root_only
def test_a_copy_to_another_file_system(tmp_path: Path, rich: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", other], check=True)
    try:
        for link in (False, True):
            copy_tree(rich, other / f"{link}", link=link)
            assert described(other / f"{link}") == described(rich)
    finally:
        subprocess.run(["umount", other], check=True)


@root_only
def test_device_nodes_are_not_copied(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    os.mknod(tmp_path / "tree/null", stat.S_IFCHR, os.makedev(1, 3))
    for make in (copy_tree, lambda tree, target: merge_trees([tree], target, bottom=True, ownership=OWNERSHIP)):
        with pytest.raises(InvalidRequest, match="device"):
            make(tmp_path / "tree", tmp_path / f"copy{id(make)}")


@pytest.fixture
def memory() -> Iterator[Path]:
    """A place in memory, where deep trees are made, and removed again, in no time."""
    shared = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="test-deep-", dir=shared if os.access(shared, os.W_OK) else None))
    yield place
    remove_tree(place)


TWO_READERS = """
import io, sys, threading
from pathlib import Path
from dutyfree.images.trees.pack import pack
from dutyfree.images.ownership import Ownership
tree = Path(sys.argv[1], "tree")
(tree / "closed").mkdir(parents=True)
(tree / "closed/file").write_bytes(bytes(3_000_000))
(tree / "closed").chmod(0o055)
inside, digests = threading.Event(), []

def second():
    inside.wait()
    digests.append(pack(tree, None, Ownership.here()))

thread = threading.Thread(target=second)
thread.start()

def on_bytes(size):
    inside.set()
    thread.join(0.1)

digests.append(pack(tree, None, Ownership.here(), on_bytes))
thread.join()
digests.append(pack(tree, None, Ownership.here()))
print(len(set(digests)), oct((tree / "closed").stat().st_mode & 0o777))
"""


@root_only
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing: install util-linux")
def test_two_readers_of_an_ordinary_user_see_the_same(memory: Path) -> None:
    shutil.copytree(Path(dutyfree.__file__).parent, memory / "lib/dutyfree")
    os.chown(memory, 4321, 4321)
    become = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups"]
    interpreter = str(Path(sys.executable).resolve())
    done = subprocess.run(
        [*become, interpreter, "-B", "-c", TWO_READERS, memory],
        env={"PYTHONPATH": str(memory / "lib")},
        cwd=memory,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "1 0o55\n", done.stderr
