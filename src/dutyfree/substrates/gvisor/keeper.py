"""The keeper: a process between ours and gVisor's. It runs this file alone, with only the standard library.

The keeper has its own mount namespace: other processes do not see the sandboxes' roots, and the mounts vanish with the
keeper. It is a subreaper: orphans of gVisor become its children, and it reaps them at once. When its control socket or
our process ends, it kills all its children, removes the directories and groups from its command line, and exits. It
watches our process too, because a forked child of ours may keep a copy of the socket open after we are killed.

Requests and answers are JSON, one per packet, matched by `id`::

    mount   mounts: [[source, target, type, flags, options] ...]   all of them, or none and `error`
    umount  targets: [...]                                         those of them that are mounted
    spawn   argv, groups: [...], and two descriptors               answers with `status` when the program has ended
    kill    marker                                                 answers when no child has the marker in its command
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
    """Unmount the topmost mount at the target, if there is one (lazily: the kernel drops it after its last use)."""
    _libc.umount2(target.encode("utf-8", "surrogateescape"), DETACH)


class Keeper:
    """Serves requests in one thread. It blocks only while it waits for packets and for deaths of children."""

    def __init__(self, control: socket.socket, host: int) -> None:
        self._control = control
        self._host = host
        """A pidfd of our process."""
        self._spawned: dict[int, int] = {}
        """The number of the spawn request, by process id."""
        self._dying: dict[int, bytes] = {}
        """The marker, by the number of the kill request."""

    def serve(self) -> None:
        """Serve requests until the control socket or our process ends."""
        wakeup_read, wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._answer(0)
        while True:
            ready, _, _ = select.select([self._control.fileno(), self._host, wakeup_read], [], [])
            if self._host in ready:
                return
            if wakeup_read in ready:
                os.read(wakeup_read, 4096)
                self._reap()
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
            self._answer(number, error=f"a process could not be made: {error.strerror}", errno=error.errno)
            return
        if pid == 0:
            exec_program(argv, groups, fds)
        self._spawned[pid] = number

    def _reap(self) -> None:
        for pid, status in _reaped_children():
            number = self._spawned.pop(pid, None)
            if number is not None:
                self._answer(number, status=os.waitstatus_to_exitcode(status))
        self._kill_marked()

    def _kill_marked(self) -> None:
        """Kill marked children. Called after each death, because orphans of a dead child become our children."""
        for number, marker in list(self._dying.items()):
            marked = [pid for pid in _children() if marker in _command(pid)]
            for pid in marked:
                _kill(pid)
            if not marked:
                del self._dying[number]
                self._answer(number)

    def _answer(self, number: int, **more: object) -> None:
        with contextlib.suppress(OSError):  # our process has ended; the next `select` reports it
            self._control.send(json.dumps({"id": number, **more}).encode())


def exec_program(argv: list[str], groups: list[str], fds: list[int]) -> None:
    """Execute the program in the new process; never returns."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for group in groups:
            Path(group, "cgroup.procs").write_text("0")
        null = os.open(os.devnull, os.O_RDWR)
        for target, fd in enumerate((*(fds or (null, null)), null)):
            os.dup2(fd, target)
        os.execve(argv[0], argv, {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    finally:
        os._exit(_CANNOT_RUN)


def _reaped_children() -> Iterator[tuple[int, int]]:
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
    """Kill all children, unmount all below `scratch`, and remove the groups and `scratch`."""
    deadline_s = time.monotonic() + _LAST_KILLS_S
    while (left := _children()) and time.monotonic() < deadline_s:
        for pid in left:
            _kill(pid)
        list(_reaped_children())
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


def _enter_mount_namespace(base: str, claim: str) -> int:
    """Enter a new mount namespace, in which gVisor's unprivileged processes can reach the claim's directory.

    The parents of the claim's directory are open to root only. In this namespace, a tmpfs with open directories
    replaces them. Returns a descriptor of the directory that contains the claim outside this namespace.
    """
    if _libc.unshare(NEW_MOUNT_NAMESPACE):
        raise OSError(ctypes.get_errno(), "a mount namespace cannot be made")
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
    for fd in (control_fd, host_fd, lock_fd):  # gVisor must not inherit them; the lock shows that the keeper is alive
        os.set_inheritable(int(fd), False)
    os.umask(0o022)
    _libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    parent = _enter_mount_namespace(base, claim)
    with socket.socket(fileno=int(control_fd)) as control:
        Keeper(control, int(host_fd)).serve()
    _end([claim, *filter(None, scratch.split(":"))], groups)
    shutil.rmtree(Path(claim).name, ignore_errors=True, dir_fd=parent)


if __name__ == "__main__":
    main(sys.argv[1:])
