"""Trees as tar streams: what is sent arrives, and what a hostile sandbox sends stays inside or is refused."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dutyfree.errors import FileFailed, InvalidRequest
from dutyfree.guest import trees

LIMIT_BYTES = 1024 * 1024


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", target: str = ""
) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.size, member.mode = kind, target, len(content), 0o755
    return member, content


def stream(*entries: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in entries:
            tar.addfile(member, io.BytesIO(content))
    buffer.seek(0)
    return buffer


def symlink(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.SYMTYPE, target=target)


def test_a_tree_survives_the_way_there_and_back(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "deep" / ("n" * 200)).write_bytes(os.urandom(600_000))
    script = source / "run.sh"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o750)
    os.utime(script, (1_000_000, 1_000_000))
    (source / "deep" / "up").symlink_to("../run.sh")
    os.link(script, source / "again")
    (source / os.fsdecode(b"\xff\xfe")).write_bytes(b"not text")
    buffer = io.BytesIO()
    trees.pack(source, buffer)
    buffer.seek(0)
    trees.unpack(buffer, target, LIMIT_BYTES)
    assert sorted(path.relative_to(target) for path in target.rglob("*")) == sorted(
        path.relative_to(source) for path in source.rglob("*")
    )
    assert (target / "deep" / ("n" * 200)).read_bytes() == (source / "deep" / ("n" * 200)).read_bytes()
    assert ((target / "run.sh").stat().st_mode & 0o777, (target / "run.sh").stat().st_mtime) == (0o750, 1_000_000)
    assert (target / "deep" / "up").readlink() == Path("../run.sh")
    assert (target / "again").read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize(
    "entries",
    [
        [entry("/etc/x", content=b"x")],
        [entry("../x", content=b"x")],
        [entry("a/../../x", content=b"x")],
        [symlink("a", "b"), entry("a/x", content=b"x")],
        [entry("a", content=b"x"), entry("a", content=b"y")],
        [entry("a", content=b"x"), entry("a/b", content=b"y")],
        [entry("hard", tarfile.LNKTYPE, target="/etc/passwd")],
        [entry("hard", tarfile.LNKTYPE, target="../outside")],
        [entry("hard", tarfile.LNKTYPE, target="missing")],
        [symlink("a", "b"), entry("hard", tarfile.LNKTYPE, target="a")],
    ],
)
def test_entries_that_no_guest_packs_are_broken(tmp_path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    (tmp_path / "outside").write_text("mine")
    with pytest.raises(trees.BrokenTree):
        trees.unpack(stream(*entries), tmp_path / "tree", LIMIT_BYTES)
    assert {path.name for path in tmp_path.iterdir()} == {"outside", "tree"}
    assert (tmp_path / "outside").read_text() == "mine"


@pytest.mark.parametrize(
    "hostile",
    [
        symlink("a", "/etc/passwd"),
        symlink("a", ".."),
        symlink("d/a", "../.."),
        symlink("a", "b/../c"),
        symlink("a", "./../x"),
        entry("null", tarfile.CHRTYPE),
        entry("disk", tarfile.BLKTYPE),
        entry("pipe", tarfile.FIFOTYPE),
    ],
)
def test_ways_out_and_devices_are_refused(tmp_path: Path, hostile: tuple[tarfile.TarInfo, bytes]) -> None:
    with pytest.raises(FileFailed) as caught:
        trees.unpack(stream(hostile), tmp_path / "tree", LIMIT_BYTES)
    assert caught.value.errno == errno.EPERM


@pytest.mark.parametrize("target", ["b", "./b", "../top", "sub/x", "."])
def test_links_inside_the_tree_are_kept(tmp_path: Path, target: str) -> None:
    trees.unpack(stream(symlink("d/a", target)), tmp_path / "tree", LIMIT_BYTES)
    assert str((tmp_path / "tree/d/a").readlink()) == str(Path(target))


def test_a_name_that_is_too_long_here_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFailed) as caught:
        trees.unpack(stream(entry("n" * 5000)), tmp_path / "tree", LIMIT_BYTES)
    assert caught.value.errno == errno.ENAMETOOLONG
    assert len(str(caught.value)) < 500


def test_nothing_past_the_limit_is_taken(tmp_path: Path) -> None:
    with pytest.raises(FileFailed) as caught:
        trees.unpack(stream(entry("a", content=bytes(600)), entry("b", content=bytes(600))), tmp_path / "tree", 1000)
    assert caught.value.errno == errno.EFBIG
    assert not (tmp_path / "tree/b").exists()


def test_setuid_is_dropped_and_the_owner_can_always_remove_the_tree(tmp_path: Path) -> None:
    file, directory = entry("d/f", content=b"x"), entry("d", tarfile.DIRTYPE)
    file[0].mode, directory[0].mode = 0o6111, 0
    trees.unpack(stream(directory, file), tmp_path / "tree", LIMIT_BYTES)
    assert (tmp_path / "tree/d/f").stat().st_mode & 0o7777 == 0o711
    assert (tmp_path / "tree/d").stat().st_mode & 0o7777 == 0o700


class Endless(io.BytesIO):
    """Goes on with zeros for ever."""

    taken_bytes = 0

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size) or bytes(size or 0)
        self.taken_bytes += len(data)
        return data


def test_a_header_without_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 8 * 1024**3 - 1
    source = Endless(header.tobuf(format=tarfile.USTAR_FORMAT))
    with pytest.raises(trees.BrokenTree):
        trees.unpack(source, tmp_path / "tree", LIMIT_BYTES)
    assert source.taken_bytes < 2 * 1024 * 1024


def test_a_stream_that_ends_inside_a_file_is_broken(tmp_path: Path) -> None:
    whole = stream(entry("a", content=bytes(5000))).getvalue()
    with pytest.raises(trees.BrokenTree):
        trees.unpack(io.BytesIO(whole[:2000]), tmp_path / "tree", LIMIT_BYTES)


def test_a_stream_that_ends_between_two_files_is_broken(tmp_path: Path) -> None:
    whole = stream(entry("a", content=bytes(512)), entry("b", content=bytes(512))).getvalue()
    with pytest.raises(trees.BrokenTree, match="cut off"):
        trees.unpack(io.BytesIO(whole[:1024]), tmp_path / "tree", LIMIT_BYTES)


def test_holes_of_a_sparse_file_count_against_the_limit(tmp_path: Path) -> None:
    member, _ = entry("big")
    member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(2**40)}
    content = b"0\n".ljust(512, b"\0")
    member.size = len(content)
    with pytest.raises(FileFailed) as caught:
        trees.unpack(stream((member, content)), tmp_path / "tree", LIMIT_BYTES)
    assert caught.value.errno == errno.EFBIG


def test_one_file_far_past_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    member, _ = entry("big")
    member.size = 2**40
    source = Endless(member.tobuf(format=tarfile.GNU_FORMAT))
    with pytest.raises(FileFailed) as caught:
        trees.unpack(source, tmp_path / "tree", LIMIT_BYTES)
    assert caught.value.errno == errno.EFBIG
    assert source.taken_bytes < 1024 * 1024


def test_too_many_entries_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_ENTRIES", 2)
    trees.unpack(stream(entry("a"), entry("b")), tmp_path / "tree", LIMIT_BYTES)
    with pytest.raises(FileFailed) as caught:
        trees.unpack(stream(entry("a"), entry("b"), entry("c")), tmp_path / "more", LIMIT_BYTES)
    assert caught.value.errno == errno.EFBIG


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    data=st.binary(max_size=1500), places=st.lists(st.tuples(st.integers(0, 3000), st.binary(max_size=8)), max_size=6)
)
def test_damaged_streams_raise_nothing_unexpected(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, places: list[tuple[int, bytes]]
) -> None:
    whole = bytearray(stream(entry("a", content=data), symlink("d/l", "x"), entry("é" * 90, content=b"x")).getvalue())
    for at, damage in places:
        whole[at : at + len(damage)] = damage
    root = tmp_path_factory.mktemp("damaged")
    with contextlib.suppress(trees.BrokenTree, FileFailed):
        trees.unpack(io.BytesIO(bytes(whole)), root / "tree", LIMIT_BYTES)
    assert [path.name for path in root.iterdir()] == ["tree"]


def test_a_local_pipe_is_not_sent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest):
        trees.pack(tmp_path, io.BytesIO())
