"""Archives of layers as root: owners, device nodes and full disks."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path

import pytest

from dutyfree.errors import CapacityError, InvalidRequest
from dutyfree.images.trees.pack import pack
from dutyfree.images.trees.unpack import Unpacked, unpack
from support.layer_trees import IS_ROOT, OWNERSHIP, archive, directory, entry, symlink

root_only = pytest.mark.skipif(not IS_ROOT, reason="an ordinary user cannot give files away")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir(mode=0o700)
    return tmp_path / "tree"


def put(tree: Path, *entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> Unpacked:
    return unpack(io.BytesIO(archive(*entries, form=form)), tree, OWNERSHIP)


@root_only
def test_owners_are_shifted_and_shown_again(tree: Path) -> None:
    put(tree, directory("home", uid=0, gid=50), entry("home/f", uid=1000, gid=65535), symlink("home/l", "f", uid=7))
    shift = OWNERSHIP.shift or 0
    owners = {
        name: ((tree / name).lstat().st_uid - shift, (tree / name).lstat().st_gid - shift)
        for name in (".", "home", "home/f", "home/l")
    }
    assert owners == {".": (0, 0), "home": (0, 50), "home/f": (1000, 65535), "home/l": (7, 0)}
    buffer = io.BytesIO()
    pack(tree, buffer, OWNERSHIP)
    buffer.seek(0)
    with tarfile.open(fileobj=buffer) as tar:
        assert {each.name: (each.uid, each.gid) for each in tar} == owners


@root_only
def test_device_nodes_are_not_packed(tree: Path) -> None:
    (tree / "dev").mkdir()
    os.mknod(tree / "dev/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    digest = pack(tree, None, OWNERSHIP)
    (tree / "dev/null").unlink()
    os.utime(tree / "dev", ns=(0, 0))
    assert digest.startswith("sha256:")
    os.mknod(tree / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with pytest.raises(InvalidRequest, match="device"):
        pack(tree, None, OWNERSHIP)


@root_only
@pytest.mark.skipif(shutil.which("mount") is None, reason="mount is missing")
def test_a_full_disk_is_a_capacity_error(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", small], check=True)
    try:
        (small / "tree").mkdir()
        with pytest.raises(CapacityError) as caught:
            put(small / "tree", entry("big", content=bytes(1_000_000)))
        assert caught.value.hint
    finally:
        subprocess.run(["umount", small], check=True)
