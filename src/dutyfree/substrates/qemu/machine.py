"""One QEMU process: started, spoken to, and ended."""

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
from dutyfree.substrates.qemu.monitor import COMMAND_TIMEOUT_S, Monitor
from dutyfree.substrates.qemu.refusals import wrap_os_errors

_EXIT_S: Final = 5.0
_START_TIMEOUT_S: Final = 20.0
_LAST_WORDS_BYTES: Final = 2048
_ONLY_AS_CHILD_OF: Final = 'test "$PPID" = "$0" && exec "$@"'
"""The wish to die with the parent has no effect if the parent died before it was made."""


class Machine:
    """Dies with the event loop's thread, which started it: a host process that is killed leaves none behind.

    Made by `start`.
    """

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self._process = process
        self._handle = os.pidfd_open(process.pid)
        self._name = name
        self._monitor: Monitor | None = None
        self._heard = bytearray()
        self._listeners: list[Callable[[], None]] = []
        self._ended = False
        self._attending = asyncio.create_task(self._attend())

    @classmethod
    async def start(
        cls, argv: Sequence[str], *, directory: Path, pass_fds: Sequence[int] = (), lock_fd: int | None = None
    ) -> Machine:
        """Start QEMU in `directory`; it has answered when this returns. Its monitor is added to `argv`.

        `pass_fds` are the descriptors that `argv` speaks of; the caller closes its own. `lock_fd` is inherited, too, so
        that the claim it stands for lives as long as QEMU. Raises SubstrateUnavailable where there is no QEMU,
        SubstrateFailed, with its last words, if it ends at once, CapacityError, and DeadlineExceeded. Nothing is left
        then.
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
                env={"PATH": os.environ.get("PATH", os.defpath)},  # whoever breaks into QEMU finds no credentials there
            )  # fmt: skip
            machine = cls(process, argv[0])
        except BaseException:
            ours.close()
            if process is not None:
                await asyncio.shield(_reaped(process))
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
                words = self.last_words or str(error) or f"no answer within {_START_TIMEOUT_S:g} s"
                raise SubstrateFailed(f"{self._name} did not start: {words}") from None
            raise

    @property
    def pid(self) -> int:
        """QEMU's process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether QEMU was not seen to end yet."""
        return self._process.returncode is None and not self._ended

    @property
    def last_words(self) -> str:
        """The end of what QEMU has said on its standard error."""
        return bytes(self._heard).decode("utf-8", "replace").strip()

    async def command(self, name: str, *, timeout_s: float = COMMAND_TIMEOUT_S, **arguments: Any) -> Any:
        """One QMP command: `await machine.command("query-status")`; underscores in arguments stand for hyphens.

        Raises SubstrateFailed where QEMU refuses or has ended, DeadlineExceeded where it does not answer.
        """
        return await self._speaker().command(name, timeout_s=timeout_s, **arguments)

    def expect(self, event: str) -> asyncio.Future[dict[str, Any]]:
        """The data of the next QMP event of this name; see `Monitor.expect`."""
        return self._speaker().expect(event)

    def on_death(self, listener: Callable[[], None]) -> None:
        """Call `listener` once when QEMU has ended, whatever the reason; at once if it has."""
        if self._attending.done():
            listener()
        else:
            self._listeners.append(listener)

    async def end(self) -> None:
        """Kill QEMU. Idempotent. Raises SubstrateFailed if it does not die."""
        self._ended = True
        # Not `self._process.kill()`, which would reap a process that has ended behind asyncio's back.
        with suppress(OSError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        done, _ = await asyncio.wait([self._attending], timeout=_EXIT_S)
        if not done:
            raise SubstrateFailed(f"QEMU (process {self.pid}) could not be killed within {_EXIT_S:g} s")
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            await monitor.close()

    def _speaker(self) -> Monitor:
        if self._monitor is None:
            raise SubstrateFailed("QEMU has ended")
        return self._monitor

    async def _attend(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(_LAST_WORDS_BYTES):
            self._heard += data
            del self._heard[:-_LAST_WORDS_BYTES]
        await self._process.wait()
        os.close(self._handle)
        self._handle = -1
        for listener in self._listeners:
            with suppress(DutyfreeError):
                listener()


async def _reaped(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        process.kill()
    with suppress(TimeoutError):
        async with asyncio.timeout(_EXIT_S):
            await process.communicate()
