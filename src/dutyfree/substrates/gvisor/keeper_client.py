"""Starts the keeper process, sends it requests, and ends it."""

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

from dutyfree import claims, fork_safety
from dutyfree.errors import DeadlineExceeded, SubstrateFailed, SubstrateUnavailable
from dutyfree.substrates.gvisor import keeper

_START_TIMEOUT_S: Final = 10.0
_ANSWER_TIMEOUT_S: Final = 60.0
_END_TIMEOUT_S: Final = 20.0
"""Less than the guard gives a substrate to close: a keeper that does not end is still killed in time."""
_SEND_POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Mount:
    """The arguments of mount(2)."""

    source: str
    target: str
    kind: str
    flags: int = 0
    options: str = ""


class KeeperClient:
    """The connection to one keeper process. It belongs to the event loop that ran when it was started."""

    def __init__(self, process: asyncio.subprocess.Process, control: socket.socket) -> None:
        self._process = process
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {0: self._loop.create_future()}
        self._open = True
        self.on_death: Callable[[], None] = lambda: None
        """Called when the keeper dies before `close`."""
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._receive)

    @classmethod
    async def start(cls, claimed: claims.Claim, scratch: Sequence[Path], groups: Sequence[str]) -> KeeperClient:
        """Start a keeper, which removes `scratch` and the control groups at its end. Raises SubstrateUnavailable."""
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
        client = cls(process, ours)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await client._waiting[0]
        except (SubstrateFailed, TimeoutError):
            reason = await client._last_stderr_line()
            await client.close()
            raise SubstrateUnavailable(f"the keeper cannot make mounts on this host: {reason}") from None
        except BaseException:
            await client.close()
            raise
        return client

    @property
    def pid(self) -> int:
        """The keeper's process id; `/proc/PID/root` shows its mounts."""
        return self._process.pid

    def host_path(self, path: Path) -> Path:
        """The path by which this process reaches a path of the keeper's mount namespace."""
        return Path(f"/proc/{self.pid}/root{path}")

    async def mount(self, mounts: Sequence[Mount]) -> None:
        """Make all mounts, or none. Raises SubstrateFailed."""
        rows = [(each.source, each.target, each.kind, each.flags, each.options) for each in mounts]
        answer = await self._ask({"do": "mount", "mounts": rows})
        if "error" in answer:
            raise SubstrateFailed(f"a mount was refused: {answer['error']}")

    async def umount(self, targets: Sequence[str]) -> None:
        """Unmount the targets."""
        await self._ask({"do": "umount", "targets": list(targets)})

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        groups: Sequence[str] = (),
        fds: Sequence[int] = (),
        timeout_s: float = _ANSWER_TIMEOUT_S,
    ) -> int:
        """Run a program to its end in these control groups. Returns its exit status.

        `fds` are its standard input and output. Raises SubstrateFailed if it could not be started, DeadlineExceeded.
        """
        request = {"do": "spawn", "argv": list(argv), "groups": list(groups)}
        answer = await self._ask(request, fds, timeout_s=timeout_s)
        if "error" in answer:
            raise SubstrateFailed(str(answer["error"]))
        return int(answer["status"])

    async def kill(self, marker: str) -> None:
        """Kill all processes with the marker in their command lines, and wait until they are dead."""
        await self._ask({"do": "kill", "marker": marker})

    async def close(self) -> None:
        """End the keeper, with all that it holds. Idempotent; raises SubstrateFailed if it does not end."""
        self._disconnect(SubstrateFailed("the substrate was closed during this request"))
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._process.communicate()  # not `wait`, which would leave the pipe of its standard error open
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
            raise SubstrateFailed(f"gVisor's keeper process did not end within {_END_TIMEOUT_S:g} s") from None

    async def _ask(
        self, request: Mapping[str, object], fds: Sequence[int] = (), *, timeout_s: float = _ANSWER_TIMEOUT_S
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
                await asyncio.sleep(_SEND_POLL_S)
            except OSError:
                break
            else:
                return
        raise SubstrateFailed("gVisor's keeper process is gone", hint="open the substrate again")

    def _receive(self) -> None:
        try:
            packet = self._control.recv(keeper.PACKET_BYTES)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._disconnect(SubstrateFailed("gVisor's keeper process has died", hint="open the substrate again"))
            self.on_death()
            return
        answer = json.loads(packet)
        waiting = self._waiting.get(answer["id"])
        if waiting is not None and not waiting.done():
            waiting.set_result(answer)

    def _disconnect(self, error: SubstrateFailed) -> None:
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
                waiting.exception()  # mark it as retrieved: the caller may have stopped waiting

    async def _last_stderr_line(self) -> str:
        assert self._process.stderr is not None
        try:
            async with asyncio.timeout(1.0):
                output = await self._process.stderr.read(os.sysconf("SC_PAGESIZE"))
        except TimeoutError:
            return "gVisor's keeper process did not start"
        return output.decode("utf-8", "replace").strip().rpartition("\n")[2]
