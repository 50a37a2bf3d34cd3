"""Layers to archives and back: everything that belongs to a layer survives, and the same tree gives the same bytes."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import socket
import stat
import struct
import subprocess
import tarfile
from pathlib import Path

import pytest

from dutyfree.archive.limits import ArchiveLimits
from dutyfree.errors import InvalidRequest, SubstrateFailed
from dutyfree.images.ownership import Ownership
from dutyfree.images.trees.pack import pack
from dutyfree.images.trees.unpack import Unpacked, unpack
from support.layer_trees import IS_ROOT, OWNERSHIP, archive, described, directory, entry, hard_link, symlink


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir(mode=0o700)
    return tmp_path / "tree"


def put(tree: Path, *entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> Unpacked:
    return unpack(io.BytesIO(archive(*entries, form=form)), tree, OWNERSHIP)


def is_whiteout(path: Path) -> bool:
    info = path.lstat()
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def is_opaque(path: Path) -> bool:
    return OWNERSHIP.opaque_xattr in os.listxattr(path) and os.getxattr(path, OWNERSHIP.opaque_xattr) == b"y"


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_entry_arrives(tree: Path, form: int) -> None:
    long_name = "d/" + "n" * 90 + "/" + "m" * 90
    done = put(
        tree,
        directory("./", mode=0o711, mtime=5),
        directory("d", mode=0o2555, mtime=1_000_000),
        entry("d/run", content=b"#!/bin/sh\n", mode=0o4751, mtime=2_000_000),
        entry(long_name, content=b"long"),
        symlink("d/link", "/anywhere/else"),
        hard_link("again", "d/run"),
        entry("pipe", tarfile.FIFOTYPE, mode=0o622),
        entry("empty"),
        form=form,
    )
    assert (done.entries, done.bytes, done.left_out) == (8, 14, 0)
    assert stat.S_IMODE(tree.stat().st_mode) == 0o711
    assert tree.stat().st_mtime_ns == 5_000_000_000
    assert (stat.S_IMODE((tree / "d").stat().st_mode), (tree / "d").stat().st_mtime) == (0o2555, 1_000_000)
    run = (tree / "d/run").stat()
    assert (stat.S_IMODE(run.st_mode), run.st_mtime, run.st_nlink) == (0o4751, 2_000_000, 2)
    assert (tree / "again").read_bytes() == b"#!/bin/sh\n"
    assert (tree / long_name).read_bytes() == b"long"
    assert str((tree / "d/link").readlink()) == "/anywhere/else"
    assert stat.S_ISFIFO((tree / "pipe").lstat().st_mode)
    assert stat.S_IMODE((tree / "pipe").lstat().st_mode) == 0o622
    assert (tree / "empty").stat().st_size == 0


def test_a_tree_without_a_root_entry_belongs_to_root_and_can_be_read_by_all(tree: Path) -> None:
    put(tree, entry("usr/share/doc/x"))
    for path in (tree, tree / "usr", tree / "usr/share"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o755
        assert OWNERSHIP.shown(path.stat().st_uid) == 0
        assert path.stat().st_mtime == 0


def test_directories_that_forbid_entry_are_filled_all_the_same(tree: Path) -> None:
    note = {"SCHILY.xattr.user.note": "kept"}
    put(
        tree,
        directory("a", mode=0, pax_headers=note),
        directory("a/b", mode=0o444),
        entry("a/b/c", content=b"in", mode=0, pax_headers=note),
    )
    assert stat.S_IMODE((tree / "a").stat().st_mode) == 0
    digest = pack(tree, None, OWNERSHIP)
    assert stat.S_IMODE((tree / "a").stat().st_mode) == 0
    buffer = io.BytesIO()
    assert pack(tree, buffer, OWNERSHIP) == digest
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as tar:
        assert [(each.name, each.mode) for each in tar] == [(".", 0o755), ("a", 0), ("a/b", 0o444), ("a/b/c", 0)]
        for name in ("a", "a/b/c"):
            assert tar.getmember(name).pax_headers["SCHILY.xattr.user.note"] == "kept"


def test_deletions_become_those_of_overlay_mounts_and_back(tree: Path) -> None:
    put(tree, directory("d"), entry(".wh.gone"), entry("d/.wh.x"), directory("o"), entry("o/.wh..wh..opq"))
    assert is_whiteout(tree / "gone")
    assert is_whiteout(tree / "d/x")
    assert is_opaque(tree / "o")
    assert not is_opaque(tree / "d")
    assert not is_opaque(tree)
    buffer = io.BytesIO()
    pack(tree, buffer, OWNERSHIP)
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as tar:
        assert tar.getnames() == [".", "d", "d/.wh.x", ".wh.gone", "o", "o/.wh..wh..opq"]


def test_an_opaque_root(tree: Path) -> None:
    put(tree, entry(".wh..wh..opq"))
    assert is_opaque(tree)


@pytest.mark.parametrize("marks_first", [True, False])
def test_deletions_are_about_lower_layers_whatever_the_order(tree: Path, marks_first: bool) -> None:
    marks = [entry(".wh.file"), entry(".wh.dir"), entry(".wh.implied")]
    things = [entry("file", content=b"new"), directory("dir"), entry("dir/f"), entry("implied/f")]
    put(tree, *(marks + things if marks_first else things + marks))
    assert (tree / "file").read_bytes() == b"new"
    assert is_opaque(tree / "dir")
    assert is_opaque(tree / "implied")
    assert sorted(path.name for path in tree.rglob("*")) == ["dir", "f", "f", "file", "implied"]


def test_later_entries_replace_earlier_ones(tree: Path) -> None:
    put(
        tree,
        entry("file", content=b"old"),
        entry("file", content=b"new"),
        directory("dir", mode=0o700),
        entry("dir/kept"),
        directory("dir", mode=0o750),
        directory("gone/deep/er"),
        entry("gone/deep/f"),
        hard_link("gone/deep/er/h", "gone/deep/f"),
        entry("gone", content=b"a file now"),
        symlink("link", "file"),
        entry("link", content=b"not through the link"),
        entry("was-file"),
        directory("was-file"),
        entry("was-file/in"),
        directory("gone2/deep"),
        entry("gone2/deep/f", content=b"first"),
        hard_link("gone2/h", "gone2/deep/f"),
        symlink("gone2/deep", "/"),
        directory("gone2/deep"),
        entry("gone2/deep/f", content=b"second"),
        hard_link("gone2/deep/h", "gone2/deep/f"),
    )
    assert (tree / "file").read_bytes() == b"new"
    assert stat.S_IMODE((tree / "dir").stat().st_mode) == 0o750
    assert (tree / "dir/kept").exists()
    assert (tree / "gone").read_bytes() == b"a file now"
    assert (tree / "link").read_bytes() == b"not through the link"
    assert (tree / "was-file/in").exists()
    assert ((tree / "gone2/h").read_bytes(), (tree / "gone2/deep/h").read_bytes()) == (b"first", b"second")


def test_what_sandboxes_have_no_use_for_is_left_out(tree: Path) -> None:
    done = put(
        tree,
        entry("dev/null", tarfile.CHRTYPE, devmajor=1, devminor=3),
        entry("dev/sda", tarfile.BLKTYPE, devmajor=8),
        entry("dev/whiteout", tarfile.CHRTYPE),
        directory(".wh..wh.plnk"),
        entry(".wh..wh.plnk/12.34", content=b"x" * 700),
        entry(".wh..wh.aufs"),
        entry("f", pax_headers={"SCHILY.xattr.security.selinux": "system_u:object_r:x"}),
    )
    assert done.left_out == 7
    assert [path.name for path in tree.iterdir()] == ["f"]


def test_names_that_are_not_text_survive(tree: Path) -> None:
    names = [os.fsdecode(name) for name in (b"\xff\xfe", b"caf\xe9" * 40, "é".encode(), b"a\nb\\'\"")]
    put(tree, *(entry(name, content=b"x") for name in names), *(symlink(name + "l", name) for name in names))
    assert sorted(path.name for path in tree.iterdir()) == sorted(names + [name + "l" for name in names])
    before = described(tree)
    buffer = io.BytesIO()
    digest = pack(tree, buffer, OWNERSHIP)
    again = tree.parent / "again"
    again.mkdir()
    unpack(io.BytesIO(buffer.getvalue()), again, OWNERSHIP)
    assert described(again) == before
    assert pack(again, None, OWNERSHIP) == digest


def test_times_are_kept_to_the_nanosecond(tree: Path) -> None:
    times = {"a": 1_700_000_000_123_456_789, "b": -1_500_000_000, "c": 0, "d": 8**11 * 10**9 // 1000}
    for name, time_ns in times.items():
        (tree / name).touch()
        os.utime(tree / name, ns=(0, time_ns))
    buffer = io.BytesIO()
    pack(tree, buffer, OWNERSHIP)
    again = tree.parent / "again"
    again.mkdir()
    unpack(io.BytesIO(buffer.getvalue()), again, OWNERSHIP)
    assert {name: (again / name).stat().st_mtime_ns for name in times} == times


CAPABILITY = struct.pack("<I16s", 0x02000001, bytes(range(16)))


def test_attributes_of_users_are_kept_and_capabilities_where_they_can_be(tree: Path) -> None:
    text = CAPABILITY.decode("utf-8", "surrogateescape")
    headers = {"SCHILY.xattr.user.note": "a=b\nc", "SCHILY.xattr.security.capability": text}
    done = put(tree, entry("f", content=b"x", pax_headers=headers), directory("d", pax_headers={**headers}))
    assert os.getxattr(tree / "f", "user.note") == os.getxattr(tree / "d", "user.note") == b"a=b\nc"
    buffer = io.BytesIO()
    pack(tree, buffer, OWNERSHIP)
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as tar:
        shown = tar.getmember("f").pax_headers
    assert shown["SCHILY.xattr.user.note"] == "a=b\nc"
    if not IS_ROOT:
        assert done.left_out == 2
        assert "SCHILY.xattr.security.capability" not in shown
        return
    # It is worth something only to the root of sandboxes.
    stored = os.getxattr(tree / "f", "security.capability")
    assert stored == struct.pack("<I16sI", 0x03000001, bytes(range(16)), OWNERSHIP.shift)
    assert shown["SCHILY.xattr.security.capability"] == text


@pytest.mark.skipif(shutil.which("tar") is None, reason="GNU tar is missing")
@pytest.mark.parametrize("form", ["gnu", "posix", "ustar", "v7", "oldgnu"])
def test_archives_of_gnu_tar_are_read(tree: Path, tmp_path: Path, form: str) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d/file").write_bytes(b"content" * 1000)
    (source / "d/link").symlink_to("file")
    os.link(source / "d/file", source / "hard")
    if form in ("gnu", "posix", "oldgnu"):
        (source / ("n" * 120)).write_bytes(b"x")
        (source / "long-link").symlink_to("t" * 300)
        with (source / "sparse").open("wb") as file:
            for place in range(60):
                file.seek(place * 1_000_000)
                file.write(b"data %d" % place)
            file.truncate(100_000_000)
    options = [
        *(["--sparse"] if (source / "sparse").exists() else []),
        "--numeric-owner",
        f"--format={form}",
        "-cf",
        "-",
        ".",
    ]
    made = subprocess.run(["tar", "-C", source, *options], check=True, capture_output=True).stdout
    unpack(io.BytesIO(made), tree, OWNERSHIP)
    resolution = 1 if form == "posix" else 10**9
    for name, node in described(source, Ownership(0 if IS_ROOT else None)).items():
        copy = (tree / name).lstat()
        assert copy.st_size == (source / name).lstat().st_size or copy.st_mode & stat.S_IFDIR
        assert copy.st_mtime_ns // resolution == (source / name).lstat().st_mtime_ns // resolution
        assert stat.S_IMODE(copy.st_mode) == stat.S_IMODE((source / name).lstat().st_mode)
        if node[0] == "file":
            assert (tree / name).read_bytes() == (source / name).read_bytes()
    if (source / "sparse").exists():
        assert (tree / "sparse").stat().st_blocks * 512 < 2_000_000


@pytest.mark.skipif(shutil.which("tar") is None, reason="GNU tar is missing")
def test_gnu_tar_reads_what_we_pack(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    make_rich_tree(source)
    target.mkdir()
    with (tmp_path / "out.tar").open("wb") as out:
        pack(source, out, OWNERSHIP)
    listed = subprocess.run(["tar", "-C", target, "--xattrs", "-xpf", tmp_path / "out.tar"], capture_output=True)
    assert (listed.returncode, listed.stderr) == (0, b"")
    theirs, ours = described(target), described(source)
    assert theirs.keys() == ours.keys()
    assert theirs["d/é"][-1] == ours["d/é"][-1]


def make_rich_tree(tree: Path) -> None:
    (tree / "d/empty").mkdir(parents=True)
    (tree / "d/é").write_bytes(os.urandom(600_000))
    (tree / "d/link").symlink_to("../elsewhere" * 20)
    (tree / ("n" * 150)).write_bytes(b"x")
    os.link(tree / "d/é", tree / "again")
    os.mkfifo(tree / "pipe", 0o600)
    os.setxattr(tree / "d", "user.note", b"\0\xff")
    (tree / "d").chmod(0o1777)


def test_the_same_tree_is_the_same_archive(tmp_path: Path) -> None:
    make_rich_tree(tmp_path / "tree")
    first, second = io.BytesIO(), io.BytesIO()
    heard: list[int] = []
    digest = pack(tmp_path / "tree", first, OWNERSHIP, heard.append)
    assert pack(tmp_path / "tree", second, OWNERSHIP) == pack(tmp_path / "tree", None, OWNERSHIP) == digest
    assert first.getvalue() == second.getvalue()
    assert digest == f"sha256:{hashlib.sha256(first.getvalue()).hexdigest()}"
    assert sum(heard) == len(first.getvalue())
    heard.clear()
    (tmp_path / "again").mkdir()
    unpack(io.BytesIO(first.getvalue()), tmp_path / "again", OWNERSHIP, on_bytes=heard.append)
    assert sum(heard) == len(first.getvalue())
    assert pack(tmp_path / "again", None, OWNERSHIP) == digest


def test_canonical_bytes_are_what_they_always_were(tree: Path) -> None:
    """Layers are named after these: another byte here makes every built layer of every user another one."""
    put(
        tree,
        directory("./", mode=0o755, mtime=1),
        directory("d", mode=0o700, mtime=2),
        entry("d/é" + "x" * 120, content=b"content", mode=0o644, mtime=3.25, pax_headers={"SCHILY.xattr.user.a": "b"}),
        symlink("d/s", "t" * 120, mtime=4),
        hard_link("h", "d/é" + "x" * 120),
        entry("p", tarfile.FIFOTYPE, mode=0o600, mtime=5),
        entry("d/.wh.w"),
        entry("d/.wh..wh..opq"),
    )
    assert pack(tree, None, OWNERSHIP) == "sha256:43db9be9d550798915238ac1891ad40ad8476672e024082849c6e7b17897f999"


def test_what_no_archive_can_hold(tree: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.open(tree, os.O_RDONLY)
        listener.bind(f"/proc/self/fd/{here}/socket")
        os.close(here)
    buffer = io.BytesIO()
    pack(tree, buffer, OWNERSHIP)
    with tarfile.open(fileobj=io.BytesIO(buffer.getvalue())) as tar:
        assert tar.getnames() == ["."]
    (tree / ".wh.x").touch()
    with pytest.raises(InvalidRequest, match=r"wh\.x"):
        pack(tree, None, OWNERSHIP)


def test_nothing_is_packed_that_nobody_could_unpack(tree: Path) -> None:
    here = os.open(tree, os.O_RDONLY)
    for _ in range(16):
        os.mkdir("n" * 254, dir_fd=here)
        below = os.open("n" * 254, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("m" * 16, os.O_CREAT, 0o600, dir_fd=here))
    buffer = io.BytesIO()
    pack(tree, buffer, OWNERSHIP)
    (tree.parent / "again").mkdir()
    unpack(io.BytesIO(buffer.getvalue()), tree.parent / "again", OWNERSHIP)
    os.rename("m" * 16, "m" * 17, src_dir_fd=here, dst_dir_fd=here)
    os.close(here)
    with pytest.raises(InvalidRequest, match="path of more than 4096 bytes") as caught:
        pack(tree, None, OWNERSHIP)
    assert len(str(caught.value)) < 500


def test_headers_count_as_what_a_layer_holds(tree: Path) -> None:
    for number in range(100):
        (tree / f"{number}").symlink_to("nowhere")
    pack(tree, None, OWNERSHIP, limits=ArchiveLimits(bytes=200_000))
    with pytest.raises(InvalidRequest, match="more than 50000 bytes"):
        pack(tree, None, OWNERSHIP, limits=ArchiveLimits(bytes=50_000))


def test_too_many_first_names_to_remember_are_refused(tree: Path) -> None:
    for number in range(20):
        (tree / f"{number}").touch()
        os.link(tree / f"{number}", tree / f"{number}again")
    pack(tree, None, OWNERSHIP)
    with pytest.raises(InvalidRequest, match="several names"):
        pack(tree, None, OWNERSHIP, limits=ArchiveLimits(remembered_bytes=4000))


class Shrinking(io.BytesIO):
    """Cuts a file off as soon as the first bytes have been written."""

    def __init__(self, victim: Path) -> None:
        super().__init__()
        self._victim = victim

    def write(self, data: bytes, /) -> int:  # type: ignore[override]
        os.truncate(self._victim, 10)
        return super().write(data)


def test_a_file_that_shrinks_meanwhile_is_no_corrupt_archive(tree: Path) -> None:
    (tree / "a").write_bytes(bytes(1_000_000))
    with pytest.raises(SubstrateFailed, match="shorter"):
        pack(tree, Shrinking(tree / "a"), OWNERSHIP)
