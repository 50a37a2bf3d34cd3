"""One QEMU process: start it, send commands to its monitor, kill it."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from dutyfree.errors import DeadlineExceeded, DutyfreeError, SubstrateFailed, SubstrateUnavailable
from dutyfree.substrates.os_errors import wrap_os_errors
from dutyfree.substrates.qemu.monitor import COMMAND_TIMEOUT_S, Monitor

_EXIT_S: Final = 5.0
_START_TIMEOUT_S: Final = 20.0
_STDERR_TAIL_BYTES: Final = 2048
_ONLY_AS_CHILD_OF: Final = 'test "$PPID" = "$0" && exec "$@"'
"""Start QEMU only if our process is still its parent: `--pdeathsig` has no effect if the parent has died before."""


class Machine:
    """A QEMU process. Made by `start`.

    The kernel kills QEMU when the thread that started it (the event loop's) ends, so a killed host process leaves no
    QEMU behind.
    """

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self._process = process
        self._handle = os.pidfd_open(process.pid)
        self._name = name
        self._monitor: Monitor | None = None
        self._stderr = bytearray()
        self._listeners: list[Callable[[], None]] = []
        self._ended = False
        self._watch_task = asyncio.create_task(self._watch())

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, directory: Path, pass_fds: Sequence[int] = (), lock_fd: int | None = None
    ) -> Machine:
        """Start QEMU in `directory`, and wait until its monitor answers. The monitor's options are added to `argv`.

        QEMU inherits `pass_fds`, which `argv` refers to by number; the caller closes its own copies. QEMU also inherits
        `lock_fd`, so that the claim stays alive as long as QEMU.

        Raises SubstrateUnavailable if QEMU is not installed, SubstrateFailed with the end of its standard error if it
        ends at once, CapacityError, DeadlineExceeded. No process is left then.
        """
        setpriv = shutil.which("setpriv")
        if setpriv is None or shutil.which(argv[0]) is None:
            missing, package = ("setpriv", "util-linux") if setpriv is None else (argv[0], "qemu-system-x86")
            raise SubstrateUnavailable(f"there is no program {missing!r}", hint=f"install {package}")
        with wrap_os_errors(f"{argv[0]} could not be started"):
            return await cls._start([setpriv, "--pdeathsig", "KILL"], argv, directory, {*pass_fds}, lock_fd)

    @classmethod
    async def _start(
        cls, guard: Sequence[str], argv: Sequence[str], directory: Path, pass_fds: set[int], lock_fd: int | None
    ) -> Machine:
        ours, theirs = socket.socketpair()
        guarded = [*guard, "sh", "-c", _ONLY_AS_CHILD_OF, str(os.getpid()), *argv]
        monitored = ["-chardev", f"socket,id=monitor,fd={theirs.fileno()}", "-mon", "chardev=monitor,mode=control"]
        inherited = {*pass_fds, theirs.fileno(), *(() if lock_fd is None else (lock_fd,))}
        process: asyncio.subprocess.Process | None = None
        try:
            process = await asyncio.create_subprocess_exec(
                *guarded, *monitored, cwd=directory, pass_fds=tuple(inherited), start_new_session=True,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                env={"PATH": os.environ.get("PATH", os.defpath)},  # no credentials for a guest that breaks into QEMU
            )  # fmt: skip
            machine = cls(process, argv[0])
        except BaseException:
            ours.close()
            if process is not None:
                await asyncio.shield(_kill_and_reap(process))
            raise
        finally:
            theirs.close()
        await machine._greet(ours)
        return machine

    async def _greet(self, sock: socket.socket) -> None:
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                self._monitor = await Monitor.over(sock)
        except BaseException as error:
            sock.close()
            await asyncio.shield(self.end())
            if isinstance(error, SubstrateFailed | DeadlineExceeded | TimeoutError):
                reason = self.stderr_tail or str(error) or f"no answer within {_START_TIMEOUT_S:g} s"
                raise SubstrateFailed(f"{self._name} did not start: {reason}") from None
            raise

    @property
    def pid(self) -> int:
        """The process id of QEMU."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether QEMU runs, as far as this process knows."""
        return self._process.returncode is None and not self._ended

    @property
    def stderr_tail(self) -> str:
        """The end of QEMU's standard error."""
        return bytes(self._stderr).decode("utf-8", "replace").strip()

    async def command(self, name: str, *, timeout_s: float = COMMAND_TIMEOUT_S, **arguments: Any) -> Any:
        """Run one QMP command: `await machine.command("query-status")`. Underscores in arguments stand for hyphens.

        Raises SubstrateFailed if QEMU refuses or has ended, DeadlineExceeded if it does not answer.
        """
        return await self._open_monitor().command(name, timeout_s=timeout_s, **arguments)

    def expect(self, event: str) -> asyncio.Future[dict[str, Any]]:
        """The data of the next QMP event of this name; see `Monitor.expect`."""
        return self._open_monitor().expect(event)

    def on_death(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when QEMU has ended, whatever the reason; at once if it has ended already."""
        if self._watch_task.done():
            listener()
        else:
            self._listeners.append(listener)

    async def end(self) -> None:
        """Kill QEMU. Idempotent. Raises SubstrateFailed if it does not die."""
        self._ended = True
        # Not `self._process.kill()`: it would reap an ended process before asyncio's own watcher does.
        with suppress(OSError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        done, _ = await asyncio.wait([self._watch_task], timeout=_EXIT_S)
        if not done:
            raise SubstrateFailed(f"QEMU (process {self.pid}) could not be killed within {_EXIT_S:g} s")
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            await monitor.close()

    def _open_monitor(self) -> Monitor:
        if self._monitor is None:
            raise SubstrateFailed("QEMU has ended")
        return self._monitor

    async def _watch(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(_STDERR_TAIL_BYTES):
            self._stderr += data
            del self._stderr[:-_STDERR_TAIL_BYTES]
        await self._process.wait()
        os.close(self._handle)
        self._handle = -1
        for listener in self._listeners:
            with suppress(DutyfreeError):
                listener()


async def _kill_and_reap(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(_EXIT_S):
            await process.communicate()
