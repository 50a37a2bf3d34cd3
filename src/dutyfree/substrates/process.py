"""`process`: no isolation at all, the baseline. Each sandbox is a guest among the host's own processes.

A sandbox's working directory, home and temporary directory are one fresh directory, inside a directory of the
substrate's own that bears the name of its claim: what a process that was killed left behind, the next `open` removes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import secrets
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from dutyfree import claims, fork_safety, native
from dutyfree.contract import SpanListener, Substrate
from dutyfree.errors import (
    InvalidRequest,
    LinkFailed,
    SandboxGone,
    SubstrateFailed,
    SubstrateUnavailable,
)
from dutyfree.failure import on_failure
from dutyfree.guest import DEFAULT_ENVIRONMENT, GuestSandbox
from dutyfree.model import Capability, Isolation, Network, Phase, SandboxSpec, Span, Unenforced, Usage
from dutyfree.removal import remove_tree
from dutyfree.substrates.os_errors import wrap_os_errors
from dutyfree.substrates.process_memory import tree_usage
from dutyfree.wire.channel import Channel

KIND: Final = "process"
"""Of the claims."""
_PREFIX: Final = "dutyfree-process-"
_EXIT_TIMEOUT_S: Final = 5.0
_STRAY_ROUNDS: Final = 20
_REASON: Final = "an ordinary process of the host has no walls and no bounds of its own"


class ProcessSubstrate(Substrate):
    """Sandboxes without isolation: each has a directory of its own, and shares all the rest with the host."""

    name = "process"
    isolation = Isolation.NONE

    def __init__(self) -> None:
        self._guest: Path | None = None
        self._directory: Path | None = None
        self._claim: claims.Claim | None = None
        self._sandboxes: dict[str, ProcessSandbox] = {}

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset(
            {
                Capability.SESSIONS,
                Capability.TERMINALS,
                Capability.WATCH,
                Capability.FILES,
                Capability.KILL_TREE,
                Capability.HOST_PROCESSES,
                Capability.HOST_NETWORK,
            }
        )

    async def open(self) -> None:
        if self._directory is not None:
            return
        self._guest = native.guest_path()
        await asyncio.to_thread(_sweep)
        claim = claims.claim(KIND)
        with on_failure(claim.release):
            self._directory = _make_directory(claim)
        self._claim = claim

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> ProcessSandbox:
        if self._directory is None or self._guest is None:
            raise InvalidRequest("the substrate is not open")
        self.check(spec)
        start_ns = time.monotonic_ns()
        sandbox_id = f"process-{secrets.token_hex(6)}"
        body = _Body(self._guest, self._directory / sandbox_id)
        spawned_ns = time.monotonic_ns()
        try:
            await body.channel.handshake()
            if self._directory is None:
                raise SubstrateFailed("the substrate was closed during a creation")
        except BaseException as error:
            body.channel.close()
            await asyncio.shield(asyncio.ensure_future(body.give_back()))
            if isinstance(error, LinkFailed):
                raise SubstrateFailed(f"the guest did not come up: {error.message}") from error
            raise
        if on_span is not None:
            on_span(Span(Phase.CREATE, start_ns, spawned_ns, sandbox_id, "spawn"))
            on_span(Span(Phase.READY, spawned_ns, time.monotonic_ns(), sandbox_id, "handshake"))

        async def destroy() -> None:
            await body.give_back()
            self._sandboxes.pop(sandbox_id, None)

        sandbox = ProcessSandbox(
            sandbox_id,
            body.channel,
            destroy=destroy,
            env={**_environment(body.directory), **spec.env},
            cwd=str(body.directory),
            unenforced=_unenforced(spec),
            on_span=on_span,
            one_user="its processes are the host's own",
        )
        sandbox.pid = body.pid
        self._sandboxes[sandbox_id] = sandbox
        return sandbox

    async def close(self) -> None:
        directory, self._directory = self._directory, None
        claim, self._claim = self._claim, None
        sandboxes = list(self._sandboxes.values())
        outcomes = await asyncio.gather(*(sandbox.destroy() for sandbox in sandboxes), return_exceptions=True)
        if directory is not None and claim is not None:
            try:
                await asyncio.to_thread(remove_tree, directory)
            finally:
                await asyncio.to_thread(claim.release)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


class ProcessSandbox(GuestSandbox):
    """A guest among the host's own processes."""

    pid: int = 0
    """The guest's process."""

    def usage(self) -> Usage | None:
        if not self.alive:
            raise SandboxGone(f"sandbox {self.id} is gone")
        return tree_usage(self.pid)


class _Body:
    """The resources of a sandbox: a guest process, the channel to it, and a directory."""

    def __init__(self, guest: Path, directory: Path) -> None:
        """Raises CapacityError or SubstrateFailed, and then holds nothing."""
        self.directory = directory
        with wrap_os_errors("no guest could be started"), contextlib.ExitStack() as undo:
            directory.mkdir(mode=0o700)
            undo.callback(directory.rmdir)
            ours, theirs = socket.socketpair()
            fork_safety.keep_from_children(ours.fileno(), theirs.fileno())
            undo.callback(ours.close)
            with theirs:
                self._process = _start(guest, theirs.fileno())
            undo.callback(self._process.wait)
            undo.callback(self._process.kill)
            self.pid = self._process.pid
            self._pidfd = os.pidfd_open(self.pid)
            undo.pop_all()
        self.channel = Channel.over_socket(ours)

    async def give_back(self) -> None:
        """Wait for the guest, which has received QUIT, and remove the directory. Raises SubstrateFailed."""
        if not await self._exited():
            self._process.kill()
            if not await self._exited():
                raise SubstrateFailed(f"the guest's process {self.pid} cannot be killed")
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if self._process.returncode != 0:
            await asyncio.to_thread(_kill_strays, self.directory)
        try:
            self.directory.rmdir()
        except OSError:
            await asyncio.to_thread(remove_tree, self.directory)

    async def _exited(self) -> bool:
        if self._process.poll() is not None:
            return True
        loop = asyncio.get_running_loop()
        exited = asyncio.Event()
        loop.add_reader(self._pidfd, exited.set)
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT_S):
                await exited.wait()
        except TimeoutError:
            return False
        finally:
            loop.remove_reader(self._pidfd)
        return self._process.poll() is not None


def _start(guest: Path, fd: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [guest, "--fd", str(fd)],
        pass_fds=(fd,),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        start_new_session=True,
    )


def _environment(directory: Path) -> dict[str, str]:
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    place = str(directory)
    inherited = os.environ.get("PATH", DEFAULT_ENVIRONMENT["PATH"])
    return {**DEFAULT_ENVIRONMENT, "PATH": inherited, "HOME": place, "TMPDIR": place, "USER": user}


def _unenforced(spec: SandboxSpec) -> tuple[Unenforced, ...]:
    resources = spec.resources
    asked = {
        Capability.LIMIT_MEMORY: resources.memory_bytes is not None,
        Capability.LIMIT_CPU: resources.cpus is not None,
        Capability.LIMIT_PIDS: resources.pids is not None,
        Capability.LIMIT_DISK: resources.disk_bytes is not None,
        Capability.DENY_NETWORK: spec.network is Network.NONE,
    }
    return tuple(Unenforced(what, _REASON) for what, wanted in asked.items() if wanted)


def _make_directory(claim: claims.Claim) -> Path:
    try:
        directory = Path(tempfile.gettempdir(), f"{_PREFIX}{claim.name}")
        directory.mkdir(mode=0o700)
    except OSError as error:
        hint = "let TMPDIR name a directory that you may write to"
        raise SubstrateUnavailable(f"no place for the sandboxes: {error}", hint=hint) from error
    return directory


def _sweep() -> None:
    """Remove the directories of dead claims, after killing the processes that live in them."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, SubstrateFailed):
            is_dead = claims.is_dead(directory.name.removeprefix(_PREFIX), KIND)
            if is_dead and directory.lstat().st_uid == os.getuid():
                _kill_strays(directory)
                remove_tree(directory)
    for directory in claims.dead(KIND):
        claims.forget(directory)


def _kill_strays(directory: Path) -> None:
    """Kill what a guest that was killed left behind: every process with a TMPDIR, which we set, in the directory."""
    mark = b"TMPDIR=" + os.fsencode(directory)
    for _ in range(_STRAY_ROUNDS):
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        strays = [pid for pid in pids if _is_marked(pid, mark)]
        if not strays:
            return
        for pid in strays:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _is_marked(pid: int, mark: bytes) -> bool:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    # Exactly that directory or below it: other mentions of the path do not mean that we started the process.
    return pid != os.getpid() and any(entry == mark or entry.startswith(mark + b"/") for entry in entries)
