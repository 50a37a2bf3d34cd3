"""Proves that cold trials are cold: the sandbox holds nothing of an earlier trial, and evicted pages are out of memory.

After its actions, while its clock is stopped, every trial looks for canary files of earlier trials in places that might
survive by mistake, and leaves its own canaries there. Also, no two sandboxes of an arm may have the same id.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from dutyfree import machine
from dutyfree.errors import InvalidRequest
from dutyfree.failure import on_failure
from dutyfree.measure.workloads.workload import Expectation
from dutyfree.model import Action, Observation

CANARY: Final = ".dutyfree-canary"
CANARY_TIMEOUT_S: Final = 60.0
_OWN_PLACES: Final = ('"$HOME"', '"$TMPDIR"', ".")
_ALL_PLACES: Final = (*_OWN_PLACES, "/tmp", "/var/tmp", "/dev/shm", "/run", "")
_SEPARATOR: Final = "--"
_DROP_CACHES: Final = Path("/proc/sys/vm/drop_caches")
_PAGES: Final = 256
_HINT: Final = "run the study as root on the machine itself, or leave out `evict`"


def canary_action(mark: str, *, private: bool) -> Action:
    """An action that prints the canaries that it finds, writes one with `mark` to each place, and prints those.

    If sandboxes share files (`private` is false), only the sandbox's own directories are used. The command has no
    control flow, because not every shell supports it.
    """
    files = " ".join(f"{place}/{CANARY}" for place in (_ALL_PLACES if private else _OWN_PLACES))
    leave = " ".join(f"(echo {mark} > {file}) 2> /dev/null;" for file in files.split(" "))
    look = f"cat {files} 2> /dev/null"
    return Action(f"{look}; echo {_SEPARATOR}; {leave} {look}; true", timeout_s=CANARY_TIMEOUT_S)


def canary_problem(seen: Observation, mark: str) -> str:
    """Why the observation of a `canary_action` does not prove that the sandbox was new; empty if it does."""
    if wrong := Expectation().mismatch(seen):
        return f"cannot prove that the sandbox was new: {wrong}"
    found, separator, left = seen.text.partition(f"{_SEPARATOR}\n")
    if found.strip():
        return f"the sandbox was not new: it held the canary of {' '.join(found.split())[:200]}"
    if not separator or mark not in left.splitlines():
        return "cannot prove that the sandbox was new: no canary could be written in it"
    return ""


class SeenSandboxes:
    """The ids of all sandboxes so far."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def problem(self, arm: str, sandbox: str) -> str:
        """Why the sandbox is not new; empty if it is. Remembers the sandbox's id."""
        if (arm, sandbox) in self._seen:
            return f"the sandbox was not new: an earlier one had the id {sandbox!r:.80}"
        self._seen.add((arm, sandbox))
        return ""


def check_evictable() -> None:
    """Raise InvalidRequest, with a hint, if the page cache cannot be evicted here."""
    if not os.access(_DROP_CACHES, os.W_OK):
        raise InvalidRequest("the page cache cannot be evicted: that needs root", hint=_HINT)


class PageCache:
    """Evicts the page cache, and proves it with a probe file that was in the cache before.

    Blocks for as long as the kernel takes. The constructor evicts once; it raises InvalidRequest, with a hint, if the
    eviction is not possible or cannot be proven.
    """

    def __init__(self, directory: Path) -> None:
        self._probe = _Probe(directory)
        with on_failure(self._probe.close):
            self.evict()

    def evict(self) -> dict[str, Any]:
        """Evict. Returns the size before and after, in KiB. Raises InvalidRequest if the eviction did not happen."""
        self._probe.touch()
        before_kib = machine.meminfo_kib("Cached")
        os.sync()  # dirty pages are not evicted
        try:
            _DROP_CACHES.write_text("1")
        except OSError as error:
            raise InvalidRequest(f"the page cache cannot be evicted: {error.strerror}", hint=_HINT) from error
        if resident := self._probe.resident_pages():
            raise InvalidRequest(
                f"the page cache was not evicted: {resident} of {_PAGES} pages of a file are still in it",
                hint="put the results on a file system that is not in memory",
            )
        return {"page_cache_kib": [before_kib, machine.meminfo_kib("Cached")]}

    def close(self) -> None:
        """Remove the probe."""
        self._probe.close()


class _Probe:
    """A file of which one can ask how much is in memory. It has no name, so that a killed process leaves nothing."""

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  open for as long as this is
        self._file.write(os.urandom(_PAGES * mmap.PAGESIZE))
        self._file.flush()
        os.fsync(self._file.fileno())

    def touch(self) -> None:
        """Read the whole file into memory."""
        os.pread(self._file.fileno(), _PAGES * mmap.PAGESIZE, 0)

    def resident_pages(self) -> int:
        """How many of the file's pages are in memory, according to the kernel."""
        libc = ctypes.CDLL(None, use_errno=True)
        residency = (ctypes.c_ubyte * _PAGES)()
        # A private, writable mapping, because ctypes needs a writable buffer; no page of it is touched.
        with mmap.mmap(self._file.fileno(), _PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE) as mapped:
            pages = ctypes.c_char.from_buffer(mapped)
            try:
                failed = libc.mincore(
                    ctypes.c_void_p(ctypes.addressof(pages)), ctypes.c_size_t(_PAGES * mmap.PAGESIZE), residency
                )
            finally:
                del pages
        if failed:
            raise InvalidRequest(f"the page cache cannot be inspected: {os.strerror(ctypes.get_errno())}")
        return sum(each & 1 for each in residency)

    def close(self) -> None:
        self._file.close()
