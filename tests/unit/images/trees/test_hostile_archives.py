"""Archives that mean harm: refused with a clear error, and nothing is ever written outside of the tree."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.archive.limits import ArchiveLimits
from dutyfree.errors import ArchiveRefused, SubstrateFailed
from dutyfree.images.trees.unpack import unpack
from dutyfree.removal import remove_tree
from support.layer_trees import (
    END,
    OWNERSHIP,
    archive,
    directory,
    entry,
    hard_link,
    pax_header,
    raw_header,
    record,
    symlink,
)

LIMITS = ArchiveLimits(bytes=10_000_000, entries=100, depth=50)


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "outside").write_text("mine")
    (tmp_path / "tree").mkdir()
    yield tmp_path / "tree"
    remove_tree(tmp_path / "tree")  # pytest cannot remove deep ones


def refuse(tree: Path, data: bytes | io.BytesIO, limits: ArchiveLimits = LIMITS) -> str:
    """The message with which the archive is refused; checks that the world outside stays as it was."""
    stream = io.BytesIO(data) if isinstance(data, bytes) else data
    with pytest.raises(ArchiveRefused) as caught:
        unpack(stream, tree, OWNERSHIP, limits)
    assert {path.name for path in tree.parent.iterdir()} == {"outside", "tree"}
    assert (tree.parent / "outside").read_text() == "mine"
    assert (tree.parent / "outside").stat().st_nlink == 1
    assert len(str(caught.value)) < 800
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([entry("/etc/x", content=b"x")], "absolute"),
        ([entry("../outside", content=b"x")], "'..'"),
        ([entry("a/../../outside", content=b"x")], "'..'"),
        ([directory("..")], "'..'"),
        ([entry("a\0b", pax_headers={"path": "a\0b"})], "NUL"),
        ([entry("n" * 256)], "255"),
        ([entry("/".join(["d"] * 60))], "deep"),
        ([entry("/".join(["d" * 200] * 30))], "4096"),
        ([symlink("a", "/etc"), entry("a/x", content=b"x")], "symlink"),
        ([symlink("a", ".."), entry("a/outside", content=b"x")], "symlink"),
        ([symlink("a", ".."), entry("a/.wh.outside")], "symlink"),
        ([symlink("a", ".."), entry("a/.wh..wh..opq")], "symlink"),
        ([directory("d"), symlink("d/a", "../.."), directory("d/a/b")], "symlink"),
        ([symlink("a", ".."), hard_link("stolen", "a/outside")], "no file of this archive"),
        ([entry("a", content=b"x"), entry("a/b", content=b"y")], "not a directory"),
        ([hard_link("hard", "/etc/passwd")], "absolute"),
        ([hard_link("hard", "../outside")], "'..'"),
        ([hard_link("hard", "missing")], "no file of this archive"),
        ([hard_link("hard", "missing/deep")], "no file of this archive"),
        ([hard_link("hard", ".")], "replaces"),
        ([hard_link("hard", "hard")], "replaces"),
        ([entry("d/f"), hard_link("d", "d/f")], "replaces"),
        ([hard_link("hard", "")], "empty"),
        ([directory("d"), hard_link("hard", "d")], "no file of this archive"),
        ([symlink("a", "/etc/passwd"), hard_link("hard", "a")], "no file of this archive"),
        ([entry(".wh.a"), hard_link("hard", "a")], "no file of this archive"),
        ([symlink("a", "")], "target"),
        ([symlink("a", "t" * 5000)], "target"),
        ([entry("null", tarfile.CHRTYPE, devmajor=1, devminor=3)], "device"),
        ([entry("disk", tarfile.BLKTYPE, devmajor=8)], "device"),
        ([entry("whiteout", tarfile.CHRTYPE)], "device"),
        ([entry("etc/dev/null", tarfile.CHRTYPE)], "device"),
        ([entry("dev", tarfile.CHRTYPE)], "device"),
        ([entry(".wh.")], "deletion"),
        ([entry(".wh..")], "deletion"),
        ([entry(".wh...")], "deletion"),
        ([entry("d/.wh..")], "deletion"),
        ([entry(".wh.d/x")], "deletion"),
        ([entry(".wh..wh..opq/x")], "deletion"),
        ([entry("./", content=b"x")], "root"),
        ([symlink("./", "x")], "root"),
        ([entry("x", b"V")], "type"),
        ([entry("x", uid=65536)], "65536"),
        ([symlink("x", "y", gid=70000)], "70000"),
        ([directory("x", uid=2**31)], str(2**31)),
        ([entry("x", mtime=2**36)], "1970"),
        ([entry("x", mtime=-(2**32))], "1970"),
        ([entry("x", pax_headers={"mtime": "nan"})], "no time"),
        ([entry("x", pax_headers={"mtime": "9" * 400})], "no time"),
        ([entry("x", pax_headers={"uid": "-1"})], "number"),
        ([entry("x", pax_headers={"SCHILY.xattr.trusted.overlay.opaque": "y"})], "attribute"),
        ([entry("x", pax_headers={"SCHILY.xattr.user.overlay.redirect": "/etc"})], "attribute"),
        ([symlink("x", "y", pax_headers={"SCHILY.xattr.trusted.overlay.opaque": "y"})], "attribute"),
        ([directory("./", pax_headers={"SCHILY.xattr.user.overlay.opaque": "y"})], "attribute"),
        ([entry("x", pax_headers={"SCHILY.xattr.system.posix_acl_access": "y"})], "attribute"),
        ([entry("x", pax_headers={"SCHILY.xattr.user." + "n" * 300: "y"})], "attribute"),
        ([entry("x", pax_headers={"SCHILY.xattr.user.n": "y" * 100_000})], "attribute"),
        ([entry("x", content=bytes(6_000_000)), entry("y", content=bytes(6_000_000))], "larger"),
        ([entry(f"{number}") for number in range(101)], "entries"),
    ],
)
def test_hostile_entries_are_refused(tree: Path, entries: list[tuple[tarfile.TarInfo, bytes]], why: str) -> None:
    assert why in refuse(tree, archive(*entries))


@pytest.mark.skipif(OWNERSHIP.shift is None, reason="an ordinary user's layers have no capabilities")
def test_capabilities_that_are_none_are_refused(tree: Path) -> None:
    assert "capability" in refuse(tree, archive(entry("x", pax_headers={"SCHILY.xattr.security.capability": "all"})))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "cut off"),
        (b"not an archive at all" * 100, "damaged"),
        (raw_header() + bytes(100), "cut off"),
        (raw_header(size=b"00000001000\0") + b"short", "cut off"),
        (raw_header() + bytes(512) + raw_header() + END, "behind its end mark"),
        (raw_header(size=b"0000000009x\0") + END, "number"),
        (raw_header(size=b"\xff" * 12) + END, "size"),
        (raw_header(size=b"\x80" + b"\xff" * 11) + END, "size"),
        (raw_header(size=b"77777777777\0") + END, "larger"),
        (raw_header(at_100=b"-000644\0") + END, "number"),
        (raw_header(b"", size=b"00000000000\0") + END, "empty"),
        (pax_header(record(b"path", b"a\0b")) + raw_header() + END, "NUL"),
        (pax_header(record(b"path", b"/etc/x")) + raw_header() + END, "absolute"),
        (pax_header(record(b"size", b"9" * 19)) + raw_header() + END, "size"),
        (pax_header(record(b"size", b"-1")) + raw_header() + END, "number"),
        (pax_header(record(b"SCHILY.xattr.user.a\0b", b"c")) + raw_header() + END, "attribute"),
        (pax_header(b"99999 path=x\n") + raw_header() + END, "parse"),
        (pax_header(b"0 path=x\n") + raw_header() + END, "parse"),
        (pax_header(b"9 pathxx\n") + raw_header() + END, "parse"),
        (pax_header(b"-9 path=x\n") + raw_header() + END, "parse"),
        (pax_header(b"9" * 5000) + raw_header() + END, "parse"),
        (pax_header(record(b"path", b"x"))[:600], "cut off"),
        (pax_header(record(b"path", b"x")) + END, "headers without an entry"),
        (raw_header(kind=b"L", size=b"00000000000\0") + raw_header(kind=b"K") + END, "headers without an entry"),
    ],
)
def test_damaged_archives_are_refused(tree: Path, data: bytes, why: str) -> None:
    assert why in refuse(tree, data)


SPARSE = {"at_386": b"00000000000\x0000000000001\0"}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (raw_header(kind=b"S", at_483=b"\x80\0\0\0\x10" + bytes(7)) + END, "larger"),
        (raw_header(kind=b"S", at_483=b"\xff" * 12) + END, "sparse"),
        (raw_header(kind=b"S", at_386=b"00000000000\x0000000000005\0", at_483=b"00000000004\0") + END, "sparse"),
        (raw_header(kind=b"S", at_386=b"00000000000\x0000000000005\0", at_483=b"00000000005\0") + END, "sparse"),
        (
            raw_header(
                kind=b"S",
                size=b"00000000010\0",
                at_386=b"00000000004\x0000000000004\x0000000000000\x0000000000004\0",
                at_483=b"00000000010\0",
            )
            + END,
            "sparse",
        ),
        (pax_header(record(b"GNU.sparse.map", b"0,1")) + raw_header() + END, "old format"),
        (
            pax_header(
                record(b"GNU.sparse.major", b"1")
                + record(b"GNU.sparse.minor", b"0")
                + record(b"GNU.sparse.realsize", b"1152921504606846976")
            )
            + raw_header(size=b"00000001000\0")
            + b"0\n".ljust(512, b"\0")
            + END,
            "larger",
        ),
        (
            pax_header(
                record(b"GNU.sparse.major", b"1")
                + record(b"GNU.sparse.minor", b"0")
                + record(b"GNU.sparse.realsize", b"10")
            )
            + raw_header(size=b"00000001000\0")
            + b"9999999999\n".ljust(512, b"1")
            + END,
            "does not end",
        ),
    ],
)
def test_sparse_files_that_lie_are_refused(tree: Path, data: bytes, why: str) -> None:
    assert why in refuse(tree, data)


class Endless(io.BytesIO):
    """Goes on with one byte for ever."""

    def __init__(self, start: bytes, fill: bytes) -> None:
        super().__init__(start)
        self._fill = fill
        self.taken_bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size) or self._fill * (size or 0)
        self.taken_bytes += len(data)
        return data


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K", b"X"])
def test_a_header_without_end_fills_no_memory(tree: Path, kind: bytes) -> None:
    source = Endless(raw_header(b"header", kind, b"77777777777\0"), b"9")
    assert "headers of more than" in refuse(tree, source)
    assert source.taken_bytes < 1_000_000


def test_headers_one_after_another_without_end_are_refused(tree: Path) -> None:
    assert "headers of more than" in refuse(tree, raw_header(kind=b"g") * 3000)
    assert "headers of more than" in refuse(tree, raw_header(kind=b"L") * 3000)
    sparse = raw_header(kind=b"S", at_482=b"\1") + (bytes(504) + b"\1" + bytes(7)) * 3000
    assert "headers of more than" in refuse(tree, sparse)


def test_zeros_without_end_are_refused(tree: Path) -> None:
    assert "larger" in refuse(tree, Endless(bytes(1024), b"\0"))


def test_digits_cost_no_more_time_than_other_bytes(tree: Path) -> None:
    began = time.monotonic()
    refuse(tree, pax_header(b"1" * 900_000) + raw_header() + END)
    refuse(tree, pax_header(record(b"GNU.sparse.offset", b"1" * 900_000)) + raw_header() + END)
    assert time.monotonic() - began < 5


def test_a_great_archive_takes_little_memory(tree: Path) -> None:
    data = archive(entry("big", content=bytes(40_000_000)), *(entry(f"d/{number}") for number in range(2000)))
    tracemalloc.start()
    unpack(io.BytesIO(data), tree, OWNERSHIP)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000


class Back(Exception):
    """Of one who wants to hear no more."""


def leaps(count: int) -> bytes:
    """Files at the ends of two deep branches, in turn."""
    ends = ["/".join([name] * 1000) for name in "ab"]
    files = [entry(f"{ends[number % 2]}/{number}", mode=0o644) for number in range(count)]
    return archive(directory(ends[0]), directory(ends[1]), *files)


def test_leaps_between_deep_branches_are_no_endless_work(tree: Path) -> None:
    assert "far from the one before" in refuse(tree, leaps(300), ArchiveLimits())


def test_an_archive_in_no_order_is_none_of_these(tree: Path) -> None:
    data = archive(*(entry(f"{number % 9}/a/b/c/d/e/f/g/h/{number}") for number in range(6000)))
    assert unpack(io.BytesIO(data), tree, OWNERSHIP).entries == 6000


def test_links_between_deep_branches_are_no_endless_work(tree: Path) -> None:
    ends = ["/".join([name] * 1000) for name in "ab"]
    links = [hard_link(f"{number}", ends[number % 2] + "/f") for number in range(300)]
    assert "far from the one before" in refuse(
        tree, archive(entry(ends[0] + "/f"), entry(ends[1] + "/f"), *links), ArchiveLimits()
    )


def test_who_wants_no_more_is_heard_soon(tree: Path) -> None:
    def hear(size_bytes: int) -> None:
        if size_bytes == 0:
            raise Back

    data = archive(*(entry(f"{number}", mode=0o644) for number in range(500)))
    with pytest.raises(Back):
        unpack(io.BytesIO(data), tree, OWNERSHIP, on_bytes=hear)
    assert len(list(tree.iterdir())) < 400


def test_many_deep_directories_take_little_memory(tree: Path) -> None:
    above = "/".join(["dd"] * 900)
    data = archive(*(directory(f"{above}/{number}") for number in range(400)))
    tracemalloc.start()
    unpack(io.BytesIO(data), tree, OWNERSHIP)
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # What is remembered are paths, 3 MB of them; with each name on its own they would be ten times that.
    assert peak < 10_000_000


def test_attributes_with_great_names_are_refused_as_those_with_great_values(tree: Path) -> None:
    many = {f"SCHILY.xattr.user.{number:0200}": "" for number in range(300)}
    try:
        assert "attribute" in refuse(tree, archive(entry("x", pax_headers=many)))
    except pytest.fail.Exception:
        assert len(os.listxattr(tree / "x")) == 300  # this file system has room for all of them


def test_too_many_directories_to_remember_are_refused(tree: Path) -> None:
    many = archive(*(directory(f"{number}") for number in range(80)))
    assert "directories" in refuse(tree, many, ArchiveLimits(remembered_bytes=10_000))


def test_a_link_put_in_the_place_of_a_directory_is_not_followed(tree: Path) -> None:
    swapped = archive(directory("d"), entry("d/a"), symlink("d", ".."), entry("d/outside", content=b"x"))
    assert "symlink" in refuse(tree, swapped)


def test_a_link_in_the_tree_itself_is_never_written_through(tree: Path) -> None:
    unpack(
        io.BytesIO(archive(symlink("a", "../outside"), entry("a", content=b"x"), symlink("b", "../outside"))),
        tree,
        OWNERSHIP,
    )
    assert (tree / "a").read_bytes() == b"x"
    assert not (tree / "a").is_symlink()
    assert (tree.parent / "outside").read_text() == "mine"


def test_a_tree_that_is_a_link_is_not_filled(tree: Path) -> None:
    (tree.parent / "link").symlink_to("tree")
    with pytest.raises(SubstrateFailed):
        unpack(io.BytesIO(archive(entry("x"))), tree.parent / "link", OWNERSHIP)
    assert list(tree.iterdir()) == []


def test_messages_name_the_entry_safely(tree: Path) -> None:
    message = refuse(tree, archive(entry("/\x1b[31m" + os.fsdecode(b"\xff") + "n" * 100)))
    assert r"\x1b" in message
    assert r"\xff" in message


WHOLE = archive(
    directory("d", pax_headers={"SCHILY.xattr.user.a": "b"}),
    entry("d/a", content=b"x" * 700, mtime=1.5),
    symlink("d/l", "/"),
    hard_link("h", "d/a"),
    entry(".wh.gone"),
    entry("d/.wh..wh..opq"),
    entry("é" * 90, content=b"y"),
)


@settings(max_examples=200, deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=12)), max_size=5),
    mended=st.booleans(),
    cut=st.integers(0, len(WHOLE)),
)
def test_damage_raises_nothing_unexpected(
    tmp_path_factory: pytest.TempPathFactory, places: list[tuple[int, bytes]], mended: bool, cut: int
) -> None:
    data = bytearray(WHOLE)
    for at, damage in places:
        data[at : at + len(damage)] = damage
    if mended:
        # With right checksums again, so that the damage gets past the first gate.
        for at in range(0, len(data) - 511, 512):
            if data[at + 257 : at + 262] == b"ustar":
                data[at + 148 : at + 156] = b" " * 8
                data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    else:
        data = data[:cut]
    root = tmp_path_factory.mktemp("damaged")
    (root / "tree").mkdir()
    with contextlib.suppress(ArchiveRefused):
        unpack(io.BytesIO(bytes(data)), root / "tree", OWNERSHIP, LIMITS)
    assert [path.name for path in root.iterdir()] == ["tree"]
    remove_tree(root)
