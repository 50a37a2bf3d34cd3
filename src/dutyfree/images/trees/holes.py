"""Holes: what a file says that it holds and the disk does not. A file of 7 EiB may be nothing else."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator


def stretches(fd: int, info: os.stat_result) -> Iterator[tuple[int, int]]:
    """Where there is data, as (start, end), in order and without the holes between. Raises OSError."""
    size = info.st_size
    if info.st_blocks * 512 >= size:
        if size:
            yield 0, size
        return
    end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return
        if start >= size:
            return
        end = max(min(os.lseek(fd, start, os.SEEK_HOLE), size), start + 1)
        yield start, end
