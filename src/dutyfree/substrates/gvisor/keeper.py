"""The keeper: a process between ours and gVisor's, run as a file by itself, with the standard library alone.

It lives in a mount namespace of its own, so that the roots of sandboxes are nobody else's business and are gone with
it; and whatever gVisor leaves without a parent becomes its child, so that the dead are buried at once. When its control
socket or our process ends, it kills all that it keeps, removes what it was told to, and exits: also when our process
was killed and a child that it had forked keeps a copy of the socket.

Requests and answers are JSON, one per packet, matched by `id`::

    mount   mounts: [[source, target, type, flags, options] ...]   all of them, or none and `error`
    umount  targets: [...]                                         whatever of them is mounted
    spawn   argv, groups: [...], and two descriptors               `status`, when the program has ended
    kill    marker                                                 when no child is left that names the marker
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

PACKET_BYTES: Final = 64 * 1024
SET_CHILD_SUBREAPER: Final = 36
NEW_MOUNT_NAMESPACE: Final = 0x0002_0000
BIND: Final = 4096
RECURSIVE_SLAVE: Final = 16384 | (1 << 19)
DETACH: Final = 2
_LAST_KILLS_S: Final = 5.0
_CANNOT_RUN: Final = 127

_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    """mount(2). Raises OSError, with the target as its file."""
    texts = [text.encode("utf-8", "surrogateescape") for text in (source, target, kind, options)]
    if _libc.mount(texts[0], texts[1], texts[2], ctypes.c_ulong(flags), texts[3]):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), target)


def umount(target: str) -> None:
    """Take the topmost mount off the target, if there is one; it goes when nobody uses it any more."""
    _libc.umount2(target.encode("utf-8", "surrogateescape"), DETACH)


class Keeper:
    """Single-threaded: nothing here waits, but for packets and for the deaths of children."""

    def __init__(self, control: socket.socket, host: int) -> None:
        self._control = control
        self._host = host
        """A pidfd of the process that it serves."""
        self._spawned: dict[int, int] = {}
        """Process to request."""
        self._dying: dict[int, bytes] = {}
        """Request to marker."""

    def serve(self) -> None:
        """Until the control socket ends, or the process that it serves."""
        awake, alarm = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._answer(0)
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._host, awake], [], [])
            if self._host in ready:
                return
            if awake in ready:
                os.read(awake, 4096)
                self._bury()
            if self._control.fileno() in ready and not self._take():
                return

    def _take(self) -> bool:
        packet, fds, _, _ = socket.recv_fds(self._control, PACKET_BYTES, 2)
        if not packet:
            return False
        try:
            self._do(json.loads(packet), fds)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _do(self, request: dict[str, Any], fds: list[int]) -> None:
        number = int(request["id"])
        match request["do"]:
            case "mount":
                self._mount(number, request["mounts"])
            case "umount":
                for target in request["targets"]:
                    umount(target)
                self._answer(number)
            case "spawn":
                self._spawn(number, request["argv"], request["groups"], fds)
            case "kill":
                self._dying[number] = os.fsencode(request["marker"])
                self._kill_marked()

    def _mount(self, number: int, mounts: list[tuple[str, str, str, int, str]]) -> None:
        made: list[str] = []
        try:
            for each in mounts:
                mount(*each)
                made.append(each[1])
        except OSError as error:
            for target in reversed(made):
                umount(target)
            self._answer(number, error=f"{error.filename}: {error.strerror}", errno=error.errno)
        else:
            self._answer(number)

    def _spawn(self, number: int, argv: list[str], groups: list[str], fds: list[int]) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._answer(number, error=f"no process could be made: {error.strerror}", errno=error.errno)
            return
        if pid == 0:
            become(argv, groups, fds)
        self._spawned[pid] = number

    def _bury(self) -> None:
        for pid, status in _dead():
            number = self._spawned.pop(pid, None)
            if number is not None:
                self._answer(number, status=os.waitstatus_to_exitcode(status))
        self._kill_marked()

    def _kill_marked(self) -> None:
        """Children of the dead become ours, so that each death calls for another look."""
        for number, marker in list(self._dying.items()):
            marked = [pid for pid in _children() if marker in _command(pid)]
            for pid in marked:
                _kill(pid)
            if not marked:
                del self._dying[number]
                self._answer(number)

    def _answer(self, number: int, **more: object) -> None:
        with contextlib.suppress(OSError):  # whoever asked is gone, which is told next
            self._control.send(json.dumps({"id": number, **more}).encode())


def become(argv: list[str], groups: list[str], fds: list[int]) -> None:
    """Turn the new process into the program; never returns."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for group in groups:
            Path(group, "cgroup.procs").write_text("0")
        nothing = os.open(os.devnull, os.O_RDWR)
        for place, fd in enumerate((*(fds or (nothing, nothing)), nothing)):
            os.dup2(fd, place)
        os.execve(argv[0], argv, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    finally:
        os._exit(_CANNOT_RUN)


def _dead() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            yield pid, status


def _children() -> list[int]:
    return [int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _end(scratch: list[str], groups: list[str]) -> None:
    """Leave nothing."""
    deadline_s = time.monotonic() + _LAST_KILLS_S
    while (left := _children()) and time.monotonic() < deadline_s:
        for pid in left:
            _kill(pid)
        list(_dead())
        time.sleep(0.002)
    mounted = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for target in reversed(mounted):
        if any(target.startswith(f"{directory}/") for directory in scratch):
            umount(target)
    for group in groups:
        for inner, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):
                Path(inner).rmdir()
    for directory in scratch:
        shutil.rmtree(directory, ignore_errors=True)


def _move_in(base: str, claim: str) -> int:
    """A mount namespace of our own, in which gVisor's processes, which are not root, can get to the claim.

    Its parents are closed to all others: here, and nowhere else, they are replaced by open ones. Returns the directory
    that the claim is in, as it is for everybody else.
    """
    if _libc.unshare(NEW_MOUNT_NAMESPACE):
        raise OSError(ctypes.get_errno(), "no mount namespace can be made")
    mount("", "/", "", RECURSIVE_SLAVE, "")
    place, parent = (os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (claim, Path(claim).parent))
    mount("tmpfs", base, "tmpfs", 0, "size=64k,mode=711")
    Path(claim).mkdir(parents=True)
    mount(f"/proc/self/fd/{place}", claim, "", BIND, "")
    os.close(place)
    return parent


def main(argv: list[str]) -> None:
    """`keeper.py CONTROL HOST LOCK BASE CLAIM SCRATCH[:SCRATCH...] [GROUP...]`; the first three are descriptors."""
    control_fd, host_fd, lock_fd, base, claim, scratch, *groups = argv
    for fd in (control_fd, host_fd, lock_fd):  # none is gVisor's business; the lock says that the keeper is alive
        os.set_inheritable(int(fd), False)
    os.umask(0o022)
    _libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    parent = _move_in(base, claim)
    with socket.socket(fileno=int(control_fd)) as control:
        Keeper(control, int(host_fd)).serve()
    _end([claim, *filter(None, scratch.split(":"))], groups)
    shutil.rmtree(Path(claim).name, ignore_errors=True, dir_fd=parent)


if __name__ == "__main__":
    main(sys.argv[1:])
