"""Templates of cells' disks: empty file systems, made once for each size and copied for each cell."""

from __future__ import annotations

import asyncio
import os
import subprocess
from functools import cached_property
from pathlib import Path

from dutyfree.errors import SubstrateFailed
from dutyfree.images.ownership import is_root
from dutyfree.substrates.memory_disk import inodes_for

MKFS_TIMEOUT_S = 60.0


class DiskTemplates:
    """The templates in one directory. Only root can mount their copies."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._making: dict[int, asyncio.Task[str]] = {}

    @cached_property
    def missing(self) -> str | None:
        """Why disk sizes cannot be limited on this host; None if they can."""
        return _missing(self._directory)

    async def template(self, size_bytes: int) -> str:
        """The path of an empty file system of that size. Raises SubstrateFailed."""
        if size_bytes not in self._making:
            self._making[size_bytes] = asyncio.create_task(asyncio.to_thread(self._make, size_bytes))
        try:
            return await asyncio.shield(self._making[size_bytes])
        except SubstrateFailed:
            self._making.pop(size_bytes, None)
            raise

    def _make(self, size_bytes: int) -> str:
        path = self._directory / f"template-{size_bytes}"
        # No journal: a cell's disk need not survive a crash. Inode tables are left as holes, which read as zeros.
        features = ["-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1,nodiscard"]
        command = ["mkfs.ext4", "-q", "-F", *features, "-m", "0", "-N", str(inodes_for(size_bytes)), str(path)]
        try:
            with path.open("wb") as file:
                file.truncate(size_bytes)
            subprocess.run(command, check=True, capture_output=True, timeout=MKFS_TIMEOUT_S, env={"PATH": _SEARCH_PATH})
        except (OSError, subprocess.SubprocessError) as error:
            path.unlink(missing_ok=True)
            detail = (getattr(error, "stderr", None) or str(error).encode()).decode("utf-8", "replace").strip()
            raise SubstrateFailed(f"a disk template could not be made: {detail}") from None
        return str(path)


def _missing(directory: Path) -> str | None:
    if not is_root():
        return "an ordinary user cannot mount a file system image; uppers on tmpfs are limited"
    if directory.is_relative_to("/dev"):
        return "no directory on a disk is writable; uppers on tmpfs are limited"
    import shutil  # slow to import, and few cells write to a disk

    if shutil.which("mkfs.ext4", path=_SEARCH_PATH) is None:
        return "mkfs.ext4 is not installed (Debian: e2fsprogs)"
    if not os.access("/dev/loop-control", os.R_OK | os.W_OK):
        return "/dev/loop-control is not available"
    return None


_SEARCH_PATH = "/usr/sbin:/sbin:/usr/bin:/bin"
