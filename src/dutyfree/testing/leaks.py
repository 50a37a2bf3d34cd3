"""The leak check: what the sandboxes of this process could leave on this machine, listed before and after.

A `Machine` names everything that could be a left-over; only what is in the second list and not in the first counts, so
that a long-lived spawner of a substrate that is still open is no leak. What this user may not see is skipped.

Other users of Dutyfree may work on the same machine meanwhile, and do not count. What is ours descends from this
process, or bears the name of one of its claims (names of claims begin with the process's id); a sandbox's process that
has lost its parents counts, too, unless a claim names another owner. The children of an engine's daemon bear no claim:
they count only where the caller says that its sandboxes are among them (`daemons_of`).
"""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dutyfree.places import runtime_directory, state_directory

NATIVES = ("dutyfree-guest", "dutyfree-spawner")
STATE_PREFIX = "dutyfree"
STORE = "images"
STATE_DEPTH = 3
MAX_DIRECTORIES = 20_000
POLL_S = 0.02
_CLAIM = re.compile(r"(?<![0-9])(\d{1,7})-[0-9a-f]{6,16}-[0-9a-f]{12}(?![0-9a-f])")

Found = Iterator[tuple[str, str]]
"""Pairs of a key, equal in two pictures for the same thing, and the words for people."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What was on the machine at one moment: key to description."""

    things: Mapping[str, str]
    roots: tuple[Path, ...]
    daemons: frozenset[str]


def snapshot(
    roots: Sequence[str | os.PathLike[str]] = (), *, hosts: Sequence[int] = (), daemons: frozenset[str] = frozenset()
) -> Machine:
    """The machine now. Never raises.

    All directories below `roots` count, besides our own under the usual places. `hosts`: further processes that make
    sandboxes for the caller, alive or dead. `daemons`: the programs of daemons that make sandboxes for the caller; all
    of their sandboxes count.
    """
    paths = tuple(Path(root) for root in roots)
    owners = frozenset({os.getpid(), *hosts})
    ours = _our_processes(owners, daemons)
    things: dict[str, str] = {}
    for found in (
        _processes(ours),
        _mounts(paths, owners),
        _cgroups(owners),
        _network_namespaces(ours, owners),
        _directories(paths, owners),
        _descriptors(),
        _loop_devices(owners),
    ):
        things.update(found)
    return Machine(things, paths, daemons)


def daemons_of(pid: int | None) -> frozenset[str]:
    """The programs above a sandbox's process that are neither the sandbox's nor ours: its engine's, if it has one."""
    if pid is None:
        return frozenset()
    everyone = _everyone()
    return _programs(_ancestors(pid, everyone), everyone, _own_line(everyone))


def difference(before: Machine, after: Machine) -> list[str]:
    """What is there now and was not before, in words; empty when clean."""
    return sorted(words for key, words in after.things.items() if key not in before.things)


async def settle(before: Machine, within_s: float = 2.0, *, hosts: Sequence[int] = ()) -> list[str]:
    """Wait until nothing new is left or the time is up; what is left then, in words."""
    deadline = time.monotonic() + within_s
    while True:
        left = difference(before, await asyncio.to_thread(snapshot, before.roots, hosts=hosts, daemons=before.daemons))
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


def _our_processes(owners: frozenset[int], daemons: frozenset[str]) -> list[_Process]:
    """Descendants of the owners, and processes of sandboxes that have lost their parents or belong to `daemons`."""
    everyone = _everyone()
    own_line, home = _own_line(everyone), _home()
    ours = []
    for process in everyone.values():
        if process.pid == os.getpid() or _is_stub(process, everyone):
            continue
        line = _ancestors(process.pid, everyone)
        claimed = _claimed_by(f"{process.cmdline} {process.cgroups}")
        is_unclaimed = not claimed and _is_marked(process, home)
        is_lost = is_unclaimed and _programs(line, everyone, own_line) <= daemons
        if is_lost or not owners.isdisjoint((*line, *claimed)):
            ours.append(process)
    return ours


def _programs(line: Sequence[int], everyone: Mapping[int, _Process], own_line: set[int]) -> frozenset[str]:
    """The programs among these ancestors that hold a sandbox which is not ours: another host, or an engine's daemon."""
    home = _home()
    holders = (everyone[pid] for pid in line if pid not in own_line)
    return frozenset(holder.exe for holder in holders if not _is_marked(holder, home))


def _processes(ours: Sequence[_Process]) -> Found:
    for process in ours:
        state = ", zombie" if process.state == "Z" else ""
        yield (
            f"process {process.pid} {process.started}",
            f"process {process.pid} ({process.name}{state}): {process.cmdline or process.exe or '?'}",
        )


def _claimed_by(text: str) -> set[int]:
    """The processes of the claims that `text` names."""
    return {int(found[1]) for found in _CLAIM.finditer(text)}


def _is_of_others(text: str, owners: frozenset[int]) -> bool:
    claimed = _claimed_by(text)
    return bool(claimed) and claimed.isdisjoint(owners)


def _is_stub(process: _Process, everyone: Mapping[int, _Process]) -> bool:
    """One of those in which a live gVisor sandbox runs its programs; it keeps them for the next ones."""
    parent = everyone.get(process.parent)
    return process.name == "exe" and parent is not None and parent.exe == process.exe and "runsc" in process.exe


def _is_marked(process: _Process, home: str) -> bool:
    words = process.cmdline.split()
    names = {process.name, Path(process.exe).name.removesuffix(" (deleted)"), Path(words[0]).name if words else ""}
    elsewhere = process.pid_namespace not in ("", home)
    return elsewhere or not names.isdisjoint(NATIVES) or f"/{STATE_PREFIX}" in process.cgroups


def _everyone() -> dict[int, _Process]:
    return {process.pid: process for process in map(_process, _pids()) if process}


def _own_line(everyone: Mapping[int, _Process]) -> set[int]:
    """This process and its ancestors."""
    return {os.getpid(), *_ancestors(os.getpid(), everyone)}


def _home() -> str:
    """The process namespace of this process."""
    return _link(f"/proc/{os.getpid()}/ns/pid")


def _ancestors(pid: int, everyone: Mapping[int, _Process]) -> list[int]:
    """Its parent, the parent of that, and so on, as far as they can be seen."""
    line: list[int] = []
    while pid in everyone and (parent := everyone[pid].parent) in everyone and parent not in line:
        line.append(parent)
        pid = parent
    return line


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


def _mounts(roots: Sequence[Path], owners: frozenset[int]) -> Found:
    """Those that bear our name, or are below one of `roots`: any program may mount something else meanwhile."""
    times: Counter[str] = Counter()
    for line in _text("/proc/self/mountinfo").splitlines():
        place, _, source = line.partition(" - ")
        target = place.split()[4]
        words = f"mount {target} ({' '.join(source.split()[:2])})"
        is_named = STATE_PREFIX in line and not _is_of_others(line, owners)
        if is_named or any(Path(target).is_relative_to(root) for root in roots):
            times[words] += 1
            yield f"{words} #{times[words]}", words


def _cgroups(owners: frozenset[int]) -> Found:
    for line in _text("/proc/self/mountinfo").splitlines():
        place, _, source = line.partition(" - ")
        if not source.startswith("cgroup"):
            continue
        for directory in _below(Path(place.split()[4]), depth=8):
            is_named = any(part.startswith(STATE_PREFIX) for part in directory.parts)
            if is_named and not _is_of_others(str(directory), owners):
                yield f"cgroup {directory}", f"cgroup {directory}"


def _network_namespaces(ours: Sequence[_Process], owners: frozenset[int]) -> Found:
    holders: dict[str, int] = {}
    for process in ours:
        namespace = _link(f"/proc/{process.pid}/ns/net")
        if namespace:
            holders.setdefault(namespace, process.pid)
    for namespace, pid in holders.items():
        yield namespace, f"network namespace {namespace}, held by process {pid}"
    for name in _names("/run/netns"):
        # Engines make some of their own meanwhile, under other names.
        if STATE_PREFIX in name and not _is_of_others(name, owners):
            yield f"netns {name}", f"network namespace /run/netns/{name}"


def _directories(roots: Sequence[Path], owners: frozenset[int]) -> Found:
    locked = _locked_by_others(owners)
    usual = {Path(tempfile.gettempdir()), Path("/run"), Path("/var/lib")}
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        usual.add(Path(runtime))
    tops = [place / name for place in usual for name in _names(place) if name.startswith(STATE_PREFIX)]
    tops += [root / name for root in roots for name in _names(root)]
    # All processes of this user share these two. What is in them bears the name of a claim, or is meant to stay.
    shared = {runtime_directory(), state_directory()}
    for top in tops:
        if _is_of_others(str(top), owners) or _holds_lock(top, locked) or not _is_own(top):
            continue
        if top not in shared:
            yield f"directory {top}", f"directory or file {top}"
        for directory in _below(top, STATE_DEPTH):
            is_store = top / STORE in (directory, *directory.parents)  # images are meant to stay
            is_claimed = bool(_claimed_by(str(directory)))
            if not is_store and not _is_of_others(str(directory), owners) and (is_claimed or top not in shared):
                yield f"directory {directory}", f"directory {directory}"


def _is_own(path: Path) -> bool:
    """Whether this user made it."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _locked_by_others(owners: frozenset[int]) -> set[int]:
    """The inodes of files that live processes other than the owners hold locks on."""
    found = set()
    for line in _text("/proc/locks").splitlines():
        fields = line.split()
        if len(fields) == 8 and fields[1] == "FLOCK" and int(fields[4]) not in owners:
            found.add(int(fields[5].rpartition(":")[2]))
    return found


def _holds_lock(directory: Path, locked: set[int]) -> bool:
    """Whether another process has locked a file in it: that is how a process marks its directory as in use."""
    try:
        with os.scandir(directory) as entries:
            return any(entry.inode() in locked for entry in entries)
    except OSError:
        return False


def _descriptors() -> Found:
    times: Counter[str] = Counter()
    for number in _names("/proc/self/fd"):
        target = _link(f"/proc/self/fd/{number}")
        if target:  # the listing's own descriptor is closed by now
            times[target] += 1
            yield f"fd {target} #{times[target]}", f"file descriptor {number} -> {target}"


def _loop_devices(owners: frozenset[int]) -> Found:
    for name in _names("/sys/block"):
        backing = _text(f"/sys/block/{name}/loop/backing_file").strip()
        if STATE_PREFIX in backing and not _is_of_others(backing, owners):
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
