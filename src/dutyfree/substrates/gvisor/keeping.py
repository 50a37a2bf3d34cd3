"""Our side of the keeper: requests to it, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dutyfree import fork_safety
from dutyfree.errors import DeadlineExceeded, SubstrateFailed, SubstrateUnavailable
from dutyfree.substrates import claims
from dutyfree.substrates.gvisor import keeper

_START_S: Final = 10.0
_ANSWER_S: Final = 60.0
_END_S: Final = 20.0
"""Less than the guard gives a substrate to close: a keeper that does not end is still killed in time."""
_SENDING_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Mount:
    """The arguments of mount(2)."""

    source: str
    target: str
    kind: str
    flags: int = 0
    options: str = ""


class Keeping:
    """A keeper at work. Belongs to the event loop that was running when it was started."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {0: self._loop.create_future()}
        self._open = True
        self.on_death: Callable[[], None] = lambda: None
        """Called when it has died without being asked to."""
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._receive)

    @classmethod
    async def start(cls, claimed: claims.Claim, scratch: Sequence[Path], groups: Sequence[str]) -> Keeping:
        """Start one, which removes `scratch` and the control groups when it ends. Raises SubstrateUnavailable."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fork_safety.keep_from_children(ours.fileno(), theirs.fileno())
        with theirs, fork_safety.own_handle() as host:
            inherited = (theirs.fileno(), host, claimed.lock_fd)
            arguments = [*map(str, inherited), str(claims.state_base()), str(claimed.directory)]
            arguments += [":".join(map(str, scratch)), *groups]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", keeper.__file__, *arguments,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
                pass_fds=inherited, start_new_session=True,
            )  # fmt: skip
        keeping = cls(process, ours)
        try:
            async with asyncio.timeout(_START_S):
                await keeping._waiting[0]
        except (SubstrateFailed, TimeoutError):
            words = await keeping._last_words()
            await keeping.close()
            raise SubstrateUnavailable(f"mounts of our own cannot be made here: {words}") from None
        except BaseException:
            await keeping.close()
            raise
        return keeping

    @property
    def pid(self) -> int:
        """Its process; `/proc/PID/root` shows what it has mounted."""
        return self._process.pid

    def seen(self, path: Path) -> Path:
        """A path of its mount namespace, as this process reaches it."""
        return Path(f"/proc/{self.pid}/root{path}")

    async def mount(self, mounts: Sequence[Mount]) -> None:
        """Make all mounts, or none. Raises SubstrateFailed."""
        rows = [(each.source, each.target, each.kind, each.flags, each.options) for each in mounts]
        answer = await self._ask({"do": "mount", "mounts": rows})
        if "error" in answer:
            raise SubstrateFailed(f"a mount was refused: {answer['error']}")

    async def umount(self, targets: Sequence[str]) -> None:
        """Take mounts away."""
        await self._ask({"do": "umount", "targets": list(targets)})

    async def spawn(
        self, argv: Sequence[str], *, groups: Sequence[str] = (), fds: Sequence[int] = (), timeout_s: float = _ANSWER_S
    ) -> int:
        """Run a program to its end, in these control groups; `fds` are its input and output. Its exit status.

        Raises SubstrateFailed if it could not be started, DeadlineExceeded.
        """
        request = {"do": "spawn", "argv": list(argv), "groups": list(groups)}
        answer = await self._ask(request, fds, timeout_s=timeout_s)
        if "error" in answer:
            raise SubstrateFailed(str(answer["error"]))
        return int(answer["status"])

    async def kill(self, marker: str) -> None:
        """Kill whatever names the marker on its command line, and return when it is dead."""
        await self._ask({"do": "kill", "marker": marker})

    async def close(self) -> None:
        """End it, with all that it keeps. Idempotent; raises SubstrateFailed if it does not end."""
        self._hang_up(SubstrateFailed("the substrate was closed while this was under way"))
        try:
            async with asyncio.timeout(_END_S):
                await self._process.communicate()  # not only wait: the pipe of its last words is to be closed, too
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            raise SubstrateFailed(f"the keeper of sandboxes did not end within {_END_S:g} s") from None

    async def _ask(
        self, request: Mapping[str, object], fds: Sequence[int] = (), *, timeout_s: float = _ANSWER_S
    ) -> dict[str, Any]:
        number = next(self._numbers)
        answer: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            async with asyncio.timeout(timeout_s):
                await self._send(json.dumps({"id": number, **request}).encode(), fds)
                return await answer
        except TimeoutError:
            raise DeadlineExceeded(f"{request['do']} was not done within {timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)

    async def _send(self, packet: bytes, fds: Sequence[int]) -> None:
        if len(packet) > keeper.PACKET_BYTES:
            raise SubstrateFailed(f"a request of {len(packet)} bytes is too long")
        while self._open:
            try:
                socket.send_fds(self._control, [packet], list(fds))
            except BlockingIOError:
                await asyncio.sleep(_SENDING_S)
            except OSError:
                break
            else:
                return
        raise SubstrateFailed("the keeper of sandboxes is gone", hint="open the substrate anew")

    def _receive(self) -> None:
        try:
            packet = self._control.recv(keeper.PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._hang_up(SubstrateFailed("the keeper of sandboxes has died", hint="open the substrate anew"))
            self.on_death()
            return
        answer = json.loads(packet)
        waiting = self._waiting.get(answer["id"])
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _hang_up(self, error: SubstrateFailed) -> None:
        if not self._open:
            return
        self._open = False
        self._loop.remove_reader(self._control.fileno())
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)  # a copy in a child that C code has forked must not keep it open
        self._control.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)
                waiting.exception()  # whoever waits no longer does not have to hear of it

    async def _last_words(self) -> str:
        assert self._process.stderr is not None
        try:
            async with asyncio.timeout(1.0):
                said = await self._process.stderr.read(os.sysconf("SC_PAGESIZE"))
        except TimeoutError:
            return "the keeper of sandboxes did not start"
        return said.decode("utf-8", "replace").strip().rpartition("\n")[2]
