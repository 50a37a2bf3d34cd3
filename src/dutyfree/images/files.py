"""Opening files that others chose."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from dutyfree.errors import InvalidRequest


def open_regular(path: Path) -> BinaryIO:
    """Open a file to be read; links are followed.

    Raises OSError, and InvalidRequest for anything but a regular file, which is not even opened: a pipe makes who opens
    it wait for ever, and a device may act on it.
    """
    seen = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(seen).st_mode):
            raise InvalidRequest(f"{str(path)!r} is not a regular file")
        return open(f"/proc/self/fd/{seen}", "rb", buffering=0)  # noqa: PTH123
    finally:
        os.close(seen)
