"""Image stores of an ordinary user and on full disks. As root: these mount, and become another user."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest
from dutyfree.images.ownership import is_root
from dutyfree.images.store import Store
from dutyfree.removal import remove_tree
from support.repository import ROOT

SOURCES = ROOT / "src"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with contextlib.closing(Store(tmp_path / "images").open()) as store:
        yield store


@pytest.mark.skipif(not is_root(), reason="only root can become an ordinary user, or mount a small disk")
class TestAsRoot:
    def test_an_ordinary_user_has_a_store_of_its_own(self, store: Store) -> None:
        code = """
import sys
from pathlib import Path
from dutyfree.errors import InvalidRequest
from dutyfree.images.store import Store
from dutyfree.model.image import Image
home = Path(sys.argv[1])
(home / "tree").mkdir()
(home / "tree" / "file").write_text("x")
(home / "tree").chmod(0o555)
store = Store(home / "images").open()
info = store.adopt(home / "tree", "test")
store.tag("mine", Image((info.digest,)))
assert store.check(deep=True) == []
assert store.find("mine").image.layers == (info.digest,)
assert store.tree(info.digest).stat().st_mode & 0o777 == 0o555
store.untag("mine")
assert store.prune().layers == (info.digest,)
try:
    Store(home / "roots").open()
except InvalidRequest as error:
    print(error)
"""
        home = Path(tempfile.mkdtemp(dir="/tmp"))
        try:
            (home / "roots").mkdir()
            os.chown(home, 4321, 4321)
            become = ["setpriv", "--reuid=4321", "--regid=4321", "--clear-groups", sys.executable, "-c", code]
            environment = {"PYTHONPATH": str(SOURCES), "PYTHONDONTWRITEBYTECODE": "1"}
            seen = subprocess.run([*become, str(home)], env=environment, capture_output=True, text=True)
            assert (seen.returncode, "not a directory that this user owns" in seen.stdout) == (0, True), seen.stderr
            os.chown(home / "images", 0, 0)
            with pytest.raises(InvalidRequest, match="made by an ordinary user, not by root"):
                Store(home / "images").open()
        finally:
            remove_tree(home)

    @pytest.mark.parametrize("scarce", ["nr_inodes=100", "size=2m"])
    def test_a_full_disk_can_be_pruned(self, tmp_path: Path, scarce: str) -> None:
        code = """
import contextlib, os, subprocess, sys
from pathlib import Path
from dutyfree.errors import CapacityError
from dutyfree.images.store import Store
from dutyfree.model.image import Image
disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", sys.argv[2], "none", disk / "small"], check=True)
store = Store(disk / "small" / "images").open()
(disk / "tree").mkdir()
(disk / "tree" / "file").write_bytes(os.urandom(100_000))
layer = store.adopt(disk / "tree", "test").digest
store.tag("one", Image((layer,)))
store.untag("one")
(store.root / "staging" / "removed-by-one-who-was-killed").mkdir()
with contextlib.suppress(OSError), (disk / "small" / "filler").open("wb", buffering=0) as filler:
    for number in range(1000):
        (disk / "small" / str(number)).touch()
        filler.write(bytes(4096))
try:
    with store.staging():
        (store.root / "file").write_bytes(bytes(4096))
except CapacityError as error:
    assert "prune" in str(error)
else:
    sys.exit("the disk was not full")
(store.root / "file").unlink(missing_ok=True)
pruned = Store(store.root).open().prune()
assert pruned.layers == (layer,), pruned
assert list((store.root / "staging").iterdir()) == []
assert store.check() == []
"""
        (tmp_path / "small").mkdir()
        seen = subprocess.run(
            ["unshare", "--mount", sys.executable, "-c", code, str(tmp_path), scarce], capture_output=True, text=True
        )
        assert seen.returncode == 0, seen.stderr

    def test_a_full_disk_is_told_and_leaves_the_store_whole(self, tmp_path: Path) -> None:
        code = """
import os, subprocess, sys
from pathlib import Path
from dutyfree.errors import CapacityError
from dutyfree.images.store import Store
disk = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", disk / "small"], check=True)
store = Store(disk / "small" / "images").open()
(disk / "tree").mkdir()
(disk / "tree" / "big").write_bytes(os.urandom(4 * 1024 * 1024))
try:
    store.adopt(disk / "tree", "test")
except CapacityError:
    print("told by the copying")
try:
    with store.staging() as directory:
        (directory / "big").write_bytes(os.urandom(4 * 1024 * 1024))
except CapacityError as error:
    print(error)
assert store.check() == []
(disk / "tree" / "big").write_bytes(os.urandom(1024))
assert store.has(store.adopt(disk / "tree", "test").digest)
"""
        (tmp_path / "small").mkdir()
        seen = subprocess.run(
            ["unshare", "--mount", sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True
        )
        assert seen.returncode == 0, seen.stderr
        assert "told by the copying" in seen.stdout
        assert "dutyfree image prune" in seen.stdout
