"""A disk to measure on: new, and the same for everybody.

How fast an ext4 makes files depends on what was removed from it in the last minutes, and near by. On the machine's own
disk, contenders whose directories happen to lie apart would be compared by that.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SIZE_BYTES = 24 * 1024**3


@contextmanager
def fresh(directory: Path) -> Iterator[tuple[Path, str]]:
    """A directory on such a disk, and what it is; as an ordinary user, who cannot mount, one of the machine's own."""
    point, image = directory / "disk", directory / "disk.img"
    point.mkdir()
    if os.geteuid() != 0:
        yield point, f"{file_system(point)}, the machine's own"
        return
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    # Otherwise the kernel goes on making the file system while it is measured.
    subprocess.run(["mount", "-o", "loop,noinit_itable", image, point], check=True)
    try:
        yield point, "ext4, made for this run in a file of the machine's own disk"
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


def file_system(path: Path) -> str:
    """The kind of file system that a directory is on."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    return max((point, kind) for point, kind in mounts if path.resolve().is_relative_to(point))[1]
