"""Copies the memory of a stopped machine to a file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dutyfree.substrates.os_errors import wrap_os_errors

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_ENTRY_BYTES: Final = 8
_CHUNK_PAGES: Final = 512
_COPY_BYTES: Final = 8 * 1024**2
_HOLE_BYTES: Final = 16 * PAGE_BYTES
_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61
_NO_PAGES: Final = bytes(_CHUNK_PAGES * _ENTRY_BYTES)
_FAILURE: Final = "the memory of a machine could not be copied"
_REMOVED: Final = " (deleted)"
Span = tuple[int, int]
"""Start and length, in bytes."""


def copy_memory(pid: int, base_fd: int, target: Path, *, shared: bool) -> None:
    """Write the memory of the machine in process `pid` to the new file `target`. Blocks.

    The memory began as the file `base_fd`. With `shared`, the machine writes to that file, so the file is copied.
    Otherwise the machine has private copies of the pages that it changed, and these are written over the file's pages.
    Raises CapacityError, SubstrateFailed.
    """
    with wrap_os_errors(_FAILURE), target.open("xb", buffering=0) as file:
        size_bytes, out = os.fstat(base_fd).st_size, file.fileno()
        os.truncate(out, size_bytes)
        for start, length in _written(base_fd, size_bytes):
            _copy(base_fd, start, out, start, length)
        if not shared:
            _copy_private(pid, base_fd, out)


def punch_holes(path: Path) -> None:
    """Replace zeros in a file by holes, so that copies of it are smaller. Blocks. Raises as `copy_memory` does."""
    dug = path.with_suffix(".dug")
    with wrap_os_errors(_FAILURE), path.open("rb") as source, dug.open("xb", buffering=0) as target:
        size_bytes = os.fstat(source.fileno()).st_size
        os.truncate(target.fileno(), size_bytes)
        for start, length in _written(source.fileno(), size_bytes):
            for at in range(start, start + length, _HOLE_BYTES):
                data = os.pread(source.fileno(), min(_HOLE_BYTES, start + length - at), at)
                if data.count(0) < len(data):
                    _write(target.fileno(), data, at)
    dug.rename(path)


def _written(fd: int, size_bytes: int) -> Iterator[Span]:
    """The parts of a file that are not holes."""
    at = 0
    while at < size_bytes:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError:
            return
        at = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, at - start


def _copy_private(pid: int, base_fd: int, out: int) -> None:
    info = os.fstat(base_fd)
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    areas = mappings(maps, info.st_ino, Path(f"/proc/self/fd/{base_fd}").readlink().name.removesuffix(_REMOVED))
    if sum(length for _, length, _ in areas) != info.st_size:
        raise OSError("QEMU's address space does not map the whole memory file")
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    pagemap = os.open(f"/proc/{pid}/pagemap", os.O_RDONLY | os.O_CLOEXEC)
    try:
        for address, length, offset in areas:
            for start, size in private_pages(pagemap, address, length):
                _copy(memory, start, out, offset + start - address, size)
    finally:
        os.close(memory)
        os.close(pagemap)


def mappings(maps: list[str], inode: int, name: str) -> list[tuple[int, int, int]]:
    """Address, length and offset of each mapping of a file, from the lines of /proc/PID/maps.

    The file is identified by its inode and its name. The device number cannot be used: on btrfs and on overlay file
    systems, /proc/PID/maps shows another device number than `stat`.
    """
    found = []
    for line in maps:
        area, _mode, offset, _device, number, *path = line.split(maxsplit=5)
        if path and number == str(inode) and Path(path[0]).name.removesuffix(_REMOVED) == name:
            start, end = (int(each, 16) for each in area.split("-"))
            found.append((start, end - start, int(offset, 16)))
    return found


def private_pages(pagemap: int, address: int, length: int) -> Iterator[Span]:
    """The runs of pages that a process has copied privately in place of the file's pages."""
    run: Span | None = None
    for first in range(0, length // PAGE_BYTES, _CHUNK_PAGES):
        at = address // PAGE_BYTES + first
        count = min(_CHUNK_PAGES, length // PAGE_BYTES - first)
        data = os.pread(pagemap, count * _ENTRY_BYTES, at * _ENTRY_BYTES)
        if data == _NO_PAGES:
            continue
        for index, entry in enumerate(memoryview(data).cast("Q")):
            if not entry & (_PRESENT | _SWAPPED) or entry & _OF_FILE:
                continue
            page = (at + index) * PAGE_BYTES
            if run is not None and sum(run) == page:
                run = (run[0], run[1] + PAGE_BYTES)
                continue
            if run is not None:
                yield run
            run = (page, PAGE_BYTES)
    if run is not None:
        yield run


def _copy(source: int, start: int, target: int, place: int, length: int) -> None:
    done = 0
    while done < length:
        data = os.pread(source, min(_COPY_BYTES, length - done), start + done)
        if not data:
            raise OSError("the memory ended too early")
        _write(target, data, place + done)
        done += len(data)


def _write(target: int, data: bytes, place: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(target, data[done:], place + done)
