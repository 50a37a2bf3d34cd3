"""Opens files whose path comes from the caller."""

from __future__ import annotations

import os
import stat
from io import FileIO
from pathlib import Path

from dutyfree.errors import InvalidRequest


def open_regular(path: Path) -> FileIO:
    """Open a regular file for reading; follows symlinks.

    Raises OSError, and InvalidRequest for any other kind of file, without opening it: opening a pipe may block forever,
    and opening a device may have an effect.
    """
    seen = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(seen).st_mode):
            raise InvalidRequest(f"{str(path)!r} is not a regular file")
        return open(f"/proc/self/fd/{seen}", "rb", buffering=0)  # noqa: PTH123
    finally:
        os.close(seen)
