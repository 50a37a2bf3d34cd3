"""The initrd that machines boot from: a cpio archive ("newc") with our init, the guest and kernel modules."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from dutyfree import native
from dutyfree.publish import publish
from dutyfree.substrates.qemu.kernel import Kernel, load_modules

_ALIGN: Final = 4
_TRAILER: Final = "TRAILER!!!"
Entry = tuple[str, int, bytes]
"""Path, mode with the file type, content."""


def archive(entries: Sequence[Entry]) -> bytes:
    """The archive of these entries: the same bytes for the same entries."""
    parts = [_member(number, *entry) for number, entry in enumerate(entries, 1)]
    return b"".join([*parts, _member(0, _TRAILER, 0, b"")])


def _member(number: int, path: str, mode: int, data: bytes) -> bytes:
    name = path.encode() + b"\0"
    # inode, mode, uid, gid, links, mtime, size, device (2), special device (2), name size, checksum
    numbers = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
    head = b"070701" + b"".join(b"%08x" % each for each in numbers) + name
    return _padded(head) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGN)


def contents(init: bytes, guest: bytes, modules: Sequence[bytes]) -> list[Entry]:
    """The files that native/init expects."""
    program, plain = stat.S_IFREG | 0o755, stat.S_IFREG | 0o644
    directories = [(name, stat.S_IFDIR | 0o755, b"") for name in ("dev", "proc", "sys", "modules")]
    files = [(f"modules/{number:02}.ko", plain, data) for number, data in enumerate(modules)]
    return [*directories, ("init", program, init), ("guest", program, guest), *files]


def make_initrd(kernel: Kernel, directory: Path) -> Path:
    """Write the initrd for `kernel` to `directory`, under its digest, unless it is there. Returns its path. Blocks.

    Raises SubstrateUnavailable if a program or a module is missing.
    """
    programs = (native.init_path().read_bytes(), native.guest_path().read_bytes())
    data = archive(contents(*programs, load_modules(kernel)))
    path = directory / f"initrd-{hashlib.sha256(data).hexdigest()[:32]}.cpio"
    if not path.exists():
        publish(path, data, draft=path.with_suffix(f".{os.getpid()}"))
    os.utime(path)
    return path
