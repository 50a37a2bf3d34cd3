"""The leak check: what a sandbox could leave on this machine, photographed before and after.

A `Machine` names everything that could be a left-over; only what is in the second picture and not in the first counts,
so that a long-lived spawner of a substrate that is still open is no leak. Whatever this user may not see is skipped.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NATIVES = ("dutyfree-guest", "dutyfree-spawner")
STATE_PREFIX = "dutyfree"
STORE = "images"
STATE_DEPTH = 3
MAX_DIRECTORIES = 20_000
POLL_S = 0.02

Found = Iterator[tuple[str, str]]
"""Pairs of a key, equal in two pictures for the same thing, and the words for people."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What was on the machine at one moment: key to description."""

    things: Mapping[str, str]
    roots: tuple[Path, ...]


def snapshot(roots: Sequence[str | os.PathLike[str]] = ()) -> Machine:
    """The machine now. All directories below `roots` count, besides our own under the usual places. Never raises."""
    paths = tuple(Path(root) for root in roots)
    things: dict[str, str] = {}
    for found in (
        _processes(),
        _mounts(),
        _cgroups(),
        _network_namespaces(),
        _directories(paths),
        _descriptors(),
        _loop_devices(),
    ):
        things.update(found)
    return Machine(things, paths)


def difference(before: Machine, after: Machine) -> list[str]:
    """What is there now and was not before, in words; empty when clean."""
    return sorted(words for key, words in after.things.items() if key not in before.things)


async def settle(before: Machine, within_s: float = 2.0) -> list[str]:
    """Wait until nothing new is left or the time is up; what is left then, in words."""
    deadline = time.monotonic() + within_s
    while True:
        left = difference(before, await asyncio.to_thread(snapshot, before.roots))
        if not left or time.monotonic() >= deadline:
            return left
        await asyncio.sleep(POLL_S)


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    parent: int
    started: str
    state: str
    name: str
    exe: str
    cmdline: str
    cgroups: str
    pid_namespace: str


def _processes() -> Found:
    """Descendants of this process, and whatever else bears our mark, also when its parent has died."""
    everyone = {process.pid: process for process in map(_process, _pids()) if process}
    me = os.getpid()
    home = _link(f"/proc/{me}/ns/pid")
    for process in everyone.values():
        if (
            process.pid != me
            and not _is_stub(process, everyone)
            and (_descends(process, me, everyone) or _is_marked(process, home))
        ):
            state = ", zombie" if process.state == "Z" else ""
            yield (
                f"process {process.pid} {process.started}",
                f"process {process.pid} ({process.name}{state}): {process.cmdline or process.exe or '?'}",
            )


def _is_stub(process: _Process, everyone: Mapping[int, _Process]) -> bool:
    """One of those in which a live gVisor sandbox runs its programs; it keeps them for the next ones."""
    parent = everyone.get(process.parent)
    return process.name == "exe" and parent is not None and parent.exe == process.exe and "runsc" in process.exe


def _is_marked(process: _Process, home: str) -> bool:
    words = process.cmdline.split()
    names = {process.name, Path(process.exe).name.removesuffix(" (deleted)"), Path(words[0]).name if words else ""}
    elsewhere = process.pid_namespace not in ("", home)
    return elsewhere or not names.isdisjoint(NATIVES) or f"/{STATE_PREFIX}" in process.cgroups


def _descends(process: _Process, ancestor: int, everyone: Mapping[int, _Process]) -> bool:
    seen: set[int] = set()
    parent = process.parent
    while parent and parent not in seen:
        if parent == ancestor:
            return True
        seen.add(parent)
        parent = everyone[parent].parent if parent in everyone else 0
    return False


def _process(pid: int) -> _Process | None:
    stat = _text(f"/proc/{pid}/stat")
    head, _, tail = stat.rpartition(")")
    fields = tail.split()
    if len(fields) < 20:
        return None
    return _Process(
        pid=pid,
        parent=int(fields[1]),
        started=fields[19],
        state=fields[0],
        name=head.partition("(")[2],
        exe=_link(f"/proc/{pid}/exe"),
        cmdline=_text(f"/proc/{pid}/cmdline").replace("\0", " ").strip()[:200],
        cgroups=_text(f"/proc/{pid}/cgroup"),
        pid_namespace=_link(f"/proc/{pid}/ns/pid"),
    )


def _mounts() -> Found:
    times: Counter[str] = Counter()
    for line in _text("/proc/self/mountinfo").splitlines():
        place, _, source = line.partition(" - ")
        fields = place.split()
        words = f"mount {fields[4]} ({' '.join(source.split()[:2])})"
        times[words] += 1
        yield f"{words} #{times[words]}", words


def _cgroups() -> Found:
    for line in _text("/proc/self/mountinfo").splitlines():
        place, _, source = line.partition(" - ")
        if not source.startswith("cgroup"):
            continue
        for directory in _below(Path(place.split()[4]), depth=8):
            if any(part.startswith(STATE_PREFIX) for part in directory.parts):
                yield f"cgroup {directory}", f"cgroup {directory}"


def _network_namespaces() -> Found:
    holders: dict[str, int] = {}
    for pid in _pids():
        namespace = _link(f"/proc/{pid}/ns/net")
        if namespace:
            holders.setdefault(namespace, pid)
    for namespace, pid in holders.items():
        yield namespace, f"network namespace {namespace}, held by process {pid}"
    for name in _names("/run/netns"):
        yield f"netns {name}", f"network namespace /run/netns/{name}"


def _directories(roots: Sequence[Path]) -> Found:
    usual = {Path(tempfile.gettempdir()), Path("/run"), Path("/var/lib")}
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        usual.add(Path(runtime))
    tops = [place / name for place in usual for name in _names(place) if name.startswith(STATE_PREFIX)]
    tops += [root / name for root in roots for name in _names(root)]
    for top in tops:
        yield f"directory {top}", f"directory or file {top}"
        for directory in _below(top, STATE_DEPTH):
            if top / STORE not in (directory, *directory.parents):  # images are meant to stay
                yield f"directory {directory}", f"directory {directory}"


def _descriptors() -> Found:
    times: Counter[str] = Counter()
    for number in _names("/proc/self/fd"):
        target = _link(f"/proc/self/fd/{number}")
        if target:  # the listing's own descriptor is closed by now
            times[target] += 1
            yield f"fd {target} #{times[target]}", f"file descriptor {number} -> {target}"


def _loop_devices() -> Found:
    for name in _names("/sys/block"):
        backing = _text(f"/sys/block/{name}/loop/backing_file").strip()
        if backing:
            yield f"loop {name} {backing}", f"loop device {name} on {backing}"


def _below(top: Path, depth: int) -> Iterator[Path]:
    """The directories below `top`, symlinks not followed, down to `depth`, nearest first."""
    level, budget = [top], MAX_DIRECTORIES
    for _ in range(depth):
        deeper: list[Path] = []
        for directory in level:
            try:
                with os.scandir(directory) as entries:
                    deeper += [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue
        deeper = deeper[:budget]
        budget -= len(deeper)
        yield from deeper
        level = deeper


def _pids() -> list[int]:
    return [int(name) for name in _names("/proc") if name.isdigit()]


def _names(directory: str | Path) -> list[str]:
    try:
        return [entry.name for entry in Path(directory).iterdir()]
    except OSError:
        return []


def _text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
