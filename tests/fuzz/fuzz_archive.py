"""Fuzzes everything that reads an image's archives: compression, tar headers, and what is made of their entries.

    python tests/fuzz/fuzz_archive.py -max_total_time=120 [CORPUS...]

Nothing but ArchiveRefused may come out, whatever goes in; nothing may be written outside of the tree; and what is taken
must give the same layer after it was packed and unpacked again.
Needs `atheris` (the extra `fuzz`); without it the exit code is 2.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

try:
    import atheris
except ImportError:
    print("fuzz_archive: atheris is not installed\nhint: pip install 'dutyfree[fuzz]'", file=sys.stderr)
    sys.exit(2)

with atheris.instrument_imports():
    from dutyfree.archive.compression import decompressed
    from dutyfree.archive.limits import ArchiveLimits
    from dutyfree.errors import ArchiveRefused
    from dutyfree.images.ownership import Ownership
    from dutyfree.images.trees.pack import pack
    from dutyfree.images.trees.unpack import unpack
    from dutyfree.removal import remove_tree

LIMITS = ArchiveLimits(bytes=1024 * 1024, entries=200)
BLOCK = 512
KINDS = b"0\x007123456SxgLK"
PARTS = [b"a", b"b", b"..", b".", b"", b".wh.a", b".wh.", b".wh..wh..opq", b".wh..wh.plnk", b"dev", b"\xff", b"n" * 120]
KEYS = ["path", "linkpath", "size", "uid", "mtime", "SCHILY.xattr.user.a", "SCHILY.xattr.trusted.overlay.opaque",
        "SCHILY.xattr.security.capability", "GNU.sparse.major", "GNU.sparse.minor", "GNU.sparse.realsize"]  # fmt: skip
VALUES = [b"0", b"1", b"5", b"1.5", b"-1", b"a/b", b"../a", b"a\0b", b"1\n0\n5\n"]


def header(kind: bytes, name: bytes, target: bytes, size: int, patch: bytes, at: int) -> bytes:
    """One block with a right checksum, which no fuzzer finds by itself; `patch` may spoil any field."""
    block = bytearray(BLOCK)
    block[:100] = name[:100].ljust(100, b"\0")
    block[100:148] = b"0000755\x000000001\x000000002\x00%011o\x0000000000007\x00" % size
    block[156:157] = kind
    block[157:257] = target[:100].ljust(100, b"\0")
    block[257:265] = b"ustar\x0000"
    block[at : at + len(patch)] = patch
    block = block[:BLOCK]
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def record(key: str, value: bytes) -> bytes:
    """One record of an extended header."""
    rest = b" " + key.encode() + b"=" + value + b"\n"
    length = len(rest) + 1
    while len(str(length)) + len(rest) != length:
        length += 1
    return b"%d" % length + rest


def composed(choices: atheris.FuzzedDataProvider) -> bytes:
    """An archive that is right but for what the fuzzer chooses to spoil."""
    archive = b""
    while choices.remaining_bytes() and len(archive) < 64 * BLOCK:
        kind = bytes([choices.PickValueInList(list(KINDS))])
        name, target = (
            b"/".join(choices.PickValueInList(PARTS) for _ in range(choices.ConsumeIntInRange(0, 3))) for _ in range(2)
        )
        content = choices.ConsumeBytes(choices.ConsumeIntInRange(0, 20)) if kind in b"0\x007SLKg" else b""
        if kind == b"x":
            wanted = choices.ConsumeIntInRange(0, 3)
            content = b"".join(
                record(choices.PickValueInList(KEYS), choices.PickValueInList(VALUES)) for _ in range(wanted)
            )
        patch = choices.ConsumeBytes(choices.PickValueInList([0, 0, 0, 1, 2, 12]))
        archive += header(kind, name, target, len(content), patch, choices.ConsumeIntInRange(0, BLOCK - 1))
        archive += content + bytes(-len(content) % BLOCK)
    return archive + bytes(2 * BLOCK)


def unpacked(data: bytes, home: Path, name: str, ownership: Ownership) -> Path:
    tree = home / name
    tree.mkdir()
    unpack(decompressed(io.BytesIO(data), LIMITS.bytes), tree, ownership, LIMITS)
    return tree


def one_input(data: bytes) -> None:
    """The first byte chooses whether the bytes are the archive, or say how to compose it."""
    if not data:
        return
    archive = composed(atheris.FuzzedDataProvider(data[1:])) if data[0] % 4 else data[1:]
    ownership = Ownership.here()
    home = Path(tempfile.mkdtemp(prefix="fuzz-archive-"))
    try:
        first = unpacked(archive, home, "first", ownership)
        packed = io.BytesIO()
        digest = pack(first, packed, ownership)
        second = unpacked(packed.getvalue(), home, "second", ownership)
        if pack(second, None, ownership) != digest:
            raise AssertionError("a layer changes on its way to an archive and back")
    except ArchiveRefused:
        pass
    finally:
        if not {path.name for path in home.iterdir()} <= {"first", "second"}:
            raise AssertionError("something was written outside of the tree")
        remove_tree(home)


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
