"""Finds the holes of sparse files. A file of 7 EiB may consist of one hole."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator


def stretches(fd: int, info: os.stat_result) -> Iterator[tuple[int, int]]:
    """The (start, end) offsets of the data, in order, without the holes. Raises OSError."""
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
