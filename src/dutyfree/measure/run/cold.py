"""Cold must be proven cold: nothing of an earlier trial is in a sandbox, and what was to be evicted is out of memory.

Every trial, when its actions are done and outside its clock, looks for what earlier trials left in the places that
would survive by mistake, and leaves the same itself. And no two sandboxes of an arm have the same id.
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
    """Prints the canaries that are there, leaves one with `mark` in each place, and prints those.

    Where sandboxes share files (`private` is false) only the sandbox's own directories are places. A line without any
    control flow, since not every shell has it.
    """
    files = " ".join(f"{place}/{CANARY}" for place in (_ALL_PLACES if private else _OWN_PLACES))
    leave = " ".join(f"(echo {mark} > {file}) 2> /dev/null;" for file in files.split(" "))
    look = f"cat {files} 2> /dev/null"
    return Action(f"{look}; echo {_SEPARATOR}; {leave} {look}; true", timeout_s=CANARY_TIMEOUT_S)


def canary_problem(seen: Observation, mark: str) -> str:
    """Why the observation of a `canary_action` does not prove that the sandbox was new; empty if it does."""
    if wrong := Expectation().mismatch(seen):
        return f"whether the sandbox was new cannot be told: {wrong}"
    found, separator, left = seen.text.partition(f"{_SEPARATOR}\n")
    if found.strip():
        return f"the sandbox was not new: there was the canary of {' '.join(found.split())[:200]}"
    if not separator or mark not in left.splitlines():
        return "whether the sandbox was new cannot be told: no canary could be left in it"
    return ""


class SeenSandboxes:
    """The ids that sandboxes have had."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def problem(self, arm: str, sandbox: str) -> str:
        """Why the sandbox is not a new one; empty if it is. From then on it is known."""
        if (arm, sandbox) in self._seen:
            return f"the sandbox was not new: {sandbox!r:.80} had been there before"
        self._seen.add((arm, sandbox))
        return ""


def check_evictable() -> None:
    """Raise InvalidRequest, with a hint, where the page cache certainly cannot be evicted."""
    if not os.access(_DROP_CACHES, os.W_OK):
        raise InvalidRequest("the page cache cannot be evicted: it takes root", hint=_HINT)


class PageCache:
    """Evicts the page cache, and shows by a file of its own, which was in it, that it is out.

    Blocks for as long as the kernel takes. Making one evicts for the first time; raises InvalidRequest, with a hint,
    where that cannot be done or cannot be proven.
    """

    def __init__(self, directory: Path) -> None:
        self._probe = _Probe(directory)
        try:
            self.evict()
        except BaseException:
            self._probe.close()
            raise

    def evict(self) -> dict[str, Any]:
        """What it was and is, in KiB, for the record. Raises InvalidRequest if the eviction did not take place."""
        self._probe.touch()
        before_kib = machine.meminfo_kib("Cached")
        os.sync()  # pages that are not written yet stay
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
    """A file without a name, so that nothing of it is left whoever is killed, and how much of it is in memory."""

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  open for as long as this is
        self._file.write(os.urandom(_PAGES * mmap.PAGESIZE))
        self._file.flush()
        os.fsync(self._file.fileno())

    def touch(self) -> None:
        """Have all of it in memory."""
        os.pread(self._file.fileno(), _PAGES * mmap.PAGESIZE, 0)

    def resident_pages(self) -> int:
        """How many of its pages are in memory, as the kernel says."""
        libc = ctypes.CDLL(None, use_errno=True)
        told = (ctypes.c_ubyte * _PAGES)()
        # A private, writable mapping, since ctypes takes the address of nothing else; no page of it is touched.
        with mmap.mmap(self._file.fileno(), _PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE) as mapped:
            pages = ctypes.c_char.from_buffer(mapped)
            try:
                failed = libc.mincore(
                    ctypes.c_void_p(ctypes.addressof(pages)), ctypes.c_size_t(_PAGES * mmap.PAGESIZE), told
                )
            finally:
                del pages
        if failed:
            raise InvalidRequest(f"the page cache cannot be looked at: {os.strerror(ctypes.get_errno())}")
        return sum(each & 1 for each in told)

    def close(self) -> None:
        self._file.close()
