"""Archives and layer trees for the tests of images: made entry by entry, and described so that they can be compared."""

from __future__ import annotations

import io
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

from dutyfree.images.ownership import Ownership

OWNERSHIP = Ownership.here()
IS_ROOT = OWNERSHIP.shift is not None


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **fields: Any
) -> tuple[tarfile.TarInfo, bytes]:
    """One entry; `fields` are those of TarInfo."""
    member = tarfile.TarInfo(name)
    member.type, member.size, member.mode = kind, len(content), 0o755
    for key, value in fields.items():
        setattr(member, key, value)
    return member, content


def directory(name: str, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.DIRTYPE, **fields)


def symlink(name: str, target: str, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.SYMTYPE, linkname=target, **fields)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, tarfile.LNKTYPE, linkname=target)


def archive(*entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """All entries, as a whole archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form, encoding="utf-8", errors="surrogateescape") as tar:
        for member, content in entries:
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def described(tree: Path, ownership: Ownership = OWNERSHIP) -> dict[str, tuple[object, ...]]:
    """All that layers keep of a tree, by path; `.` is its root."""
    found: dict[str, tuple[object, ...]] = {".": _node(tree, {}, ".", ownership)}
    first_names: dict[int, str] = {}
    for above, directories, files in os.walk(tree):
        directories.sort()
        for name in sorted(directories + files):
            path = Path(above, name)
            relative = str(path.relative_to(tree))
            found[relative] = _node(path, first_names, relative, ownership)
    return found


def _node(path: Path, first_names: dict[int, str], name: str, ownership: Ownership) -> tuple[object, ...]:
    info = path.lstat()
    if stat.S_ISCHR(info.st_mode):
        return ("whiteout",) if info.st_rdev == 0 else ("device",)
    common = (oct(stat.S_IMODE(info.st_mode)), ownership.shown(info.st_uid), ownership.shown(info.st_gid))
    times = (info.st_mtime_ns,)
    if stat.S_ISLNK(info.st_mode):
        return "symlink", str(path.readlink()), *common[1:], *times
    if stat.S_ISFIFO(info.st_mode):
        return "fifo", *common, *times
    xattrs = {
        key: os.getxattr(path, key)
        for key in sorted(os.listxattr(path))
        if "overlay" not in key or key == ownership.opaque_xattr
    }
    if stat.S_ISDIR(info.st_mode):
        return "directory", *common, *times, xattrs
    first = first_names.setdefault(info.st_ino, name)
    return "file", *common, *times, xattrs, first, info.st_size, path.read_bytes() if info.st_size < 2**24 else b""


def raw_header(name: bytes = b"x", kind: bytes = b"0", size: bytes = b"00000000000\0", **patches: bytes) -> bytes:
    """One block of a header with whatever bytes in its fields, and a right checksum; `at_N=...` patches at N."""
    block = bytearray(512)
    block[: len(name)] = name
    block[100:148] = b"0000644\x000000000\x000000000\x00" + size + b"00000000000\0"
    block[156:157] = kind
    block[257:265] = b"ustar\x0000"
    for place, data in patches.items():
        at = int(place.removeprefix("at_"))
        block[at : at + len(data)] = data
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax_header(records: bytes) -> bytes:
    """An extended header with exactly these bytes in it."""
    return raw_header(b"pax", b"x", b"%011o\0" % len(records)) + records + bytes(-len(records) % 512)


def record(key: bytes, value: bytes) -> bytes:
    """One record of an extended header."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(b"%d" % length) + len(rest) != length:
        length += 1
    return b"%d" % length + rest


END = bytes(1024)


def opaque(path: Path) -> None:
    os.setxattr(path, OWNERSHIP.opaque_xattr, b"y")


def whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR, 0)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def make_rich_tree(tree: Path) -> Path:
    """A tree with every kind of file, attribute and owner that layers keep."""
    write(tree / "d/file", "content" * 10_000, 0o4750)
    os.link(tree / "d/file", tree / "again")
    (tree / "d/link").symlink_to("/nowhere")
    os.mkfifo(tree / "d/pipe", 0o620)
    whiteout(tree / "gone")
    (tree / "o").mkdir(mode=0o1777)
    opaque(tree / "o")
    write(tree / "forbidden/f", "secret", 0)
    os.setxattr(tree / "d", "user.note", b"\0\xff")
    with (tree / "sparse").open("wb") as file:
        for at in (0, 10_000_000, 30_000_000):
            file.seek(at)
            file.write(b"data")
        file.truncate(50_000_000)
    if IS_ROOT:
        os.chown(tree / "d", OWNERSHIP.stored(1000), OWNERSHIP.stored(50))
        os.chown(tree / "d/link", OWNERSHIP.stored(7), OWNERSHIP.stored(8), follow_symlinks=False)
        os.setxattr(tree / "again", "security.capability", bytes.fromhex("0000000300000000") + bytes(16))
    for path in (tree / "d/file", tree / "d", tree / "o", tree):
        os.utime(path, ns=(1, 1_234_567_890_123_456_789))
    (tree / "forbidden").chmod(0o000 if IS_ROOT else 0o500)
    return tree
