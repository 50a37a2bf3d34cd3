"""The client of the spawner process: sends plans, and receives messages about cells."""

from __future__ import annotations

import array
import asyncio
import contextlib
import errno
import os
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path

from dutyfree import fork_safety
from dutyfree.errors import CapacityError, DutyfreeError, InfraFailed, SubstrateFailed, SubstrateUnavailable
from dutyfree.substrates.cell import shown
from dutyfree.substrates.cell.operations import Plan, Verb, encode, op
from dutyfree.values import dataclass
from dutyfree.wire.fields import Fields

MAX_MESSAGE_BYTES = 128 * 1024
PREPARE_STEPS = 200
CLOSE_TIMEOUT_S = 10.0
PREPARE_TIMEOUT_S = 20.0
RETRY_S = 0.01
ANSWER_TIMEOUT_S = 10.0

Rights = list[tuple[int, int, "array.array[int]"]]

_PREPARE, _SPAWN, _KILL, _FREEZE, _DROP, _HOLD, _END = 1, 2, 3, 4, 5, 6, 7
_PREPARED, _SPAWNED, _FAILED, _EXITED, _FROZEN, _DIED = 65, 66, 67, 68, 69, 70
_TAG_CELL, _TAG_PID, _TAG_ERRNO, _TAG_STEP, _TAG_STATUS = 1, 2, 3, 4, 5
_FULL = (errno.EAGAIN, errno.ENOMEM, errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.EUSERS)


@dataclass(slots=True)
class CellHandle:
    """One cell of the spawner, with the events of its life."""

    number: int
    pid: int = 0
    """The process id of the cell's first process, as this process sees it; 0 before that, -1 if there is none."""
    spawned_ns: int = 0
    """When `pid` became known."""
    spawned: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set when `pid` is known."""
    dead: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set when no process of the cell runs any more."""
    gone: asyncio.Event = field(default_factory=asyncio.Event, repr=False)
    """Set when nothing of the cell is left on the machine."""
    failure: DutyfreeError | None = None
    on_failure: Callable[[DutyfreeError], None] | None = field(default=None, repr=False)
    on_gone: Callable[[], None] | None = field(default=None, repr=False)

    def was_spawned(self, pid: int) -> None:
        """The cell has its first process, or (-1) will have none."""
        if not self.pid:
            self.pid, self.spawned_ns = pid, time.monotonic_ns()
            self.spawned.set()

    def has_gone(self) -> None:
        """Nothing of the cell is left."""
        self.was_spawned(-1)
        self.dead.set()
        self.gone.set()
        if self.on_gone is not None:
            self.on_gone()


class Spawner:
    """One spawner process. `open` starts it; after `close`, nothing that it made is left."""

    def __init__(self, binary: Path, guest: Path) -> None:
        self._binary = binary
        self._guest = guest
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._handles: dict[int, CellHandle] = {}
        self._freezing: dict[int, asyncio.Future[None]] = {}
        self._prepared: deque[asyncio.Future[None]] = deque()
        """The answers to requests to prepare, in their order."""
        self._dead: InfraFailed | None = None

    @property
    def pid(self) -> int | None:
        """The spawner's process id while it runs."""
        return self._process.pid if self._process else None

    async def open(self, *kept_fds: int, rootless: bool) -> None:
        """Start the process. It inherits `kept_fds` and keeps them open while it runs."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fork_safety.keep_from_children(ours.fileno(), theirs.fileno())
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_MESSAGE_BYTES)
        with theirs, fork_safety.own_handle() as host:
            command = [str(self._binary), "--control", str(theirs.fileno()), "--guest", str(self._guest)]
            command += ["--host", str(host), "--rootless", "1" if rootless else "0"]
            self._process = subprocess.Popen(  # noqa: ASYNC220 - returns as soon as the process exists
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(), host, *kept_fds), env={}, cwd="/",
            )  # fmt: skip
        self._control = ours
        asyncio.get_running_loop().add_reader(ours.fileno(), self._readable)

    async def prepare(self, plan: Plan, *, at_once: bool = False) -> None:
        """Run a plan in the spawner itself. Raises SubstrateUnavailable, with the step that failed.

        `at_once`: send all of it, so that the spawner need not wait for us. Steps after one that fails are then tried.
        """
        parts = [plan[at : at + PREPARE_STEPS] for at in range(0, len(plan), PREPARE_STEPS)]
        try:
            if at_once:
                await self._prepare(*parts)
            else:
                for part in parts:
                    await self._prepare(part)
        except (CapacityError, SubstrateFailed) as error:
            raise await self._unavailable(error) from error

    async def attempt(self, plan: Plan) -> str | None:
        """Run a short plan that may fail. Returns None, or the step that failed. Raises SubstrateUnavailable."""
        try:
            await self._prepare(plan)
        except (CapacityError, SubstrateFailed) as error:
            if self._dead:
                raise await self._unavailable(error) from error
            return error.message
        return None

    async def _prepare(self, *plans: Plan) -> None:
        """Send plans, and wait for the answers, which come in the same order."""
        answers = []
        try:
            async with asyncio.timeout(PREPARE_TIMEOUT_S):
                for plan in plans:
                    answers.append(asyncio.get_running_loop().create_future())
                    self._prepared.append(answers[-1])
                    with contextlib.suppress(SubstrateFailed):  # if the spawner has just died, `_dead` has the reason
                        await self._send_with_retry(bytes([_PREPARE]) + encode(plan))
                    if self._dead:
                        raise self._dead
                for answer in answers:
                    await answer
        except TimeoutError:
            raise SubstrateUnavailable("the cell spawner does not answer") from None
        finally:
            for answer in answers:
                if not answer.cancel() and not answer.cancelled():
                    answer.exception()  # the first failure is raised; no one asks for the others

    async def _unavailable(self, error: DutyfreeError) -> DutyfreeError:
        """The error for a failed `prepare`, with its cause. The diagnosis runs only now, after the failure."""
        from dutyfree.substrates.cell import diagnosis

        explained = await diagnosis.explain(error, self._binary)
        if explained is not error:
            return explained
        message = f"cells cannot be made here, although each of their steps works separately: {error.message}"
        return SubstrateUnavailable(message, hint="please report this, with what `dutyfree doctor --json cell` prints")

    async def spawn(self, number: int, plan: bytes, stream: socket.socket, trees: Sequence[int] = ()) -> CellHandle:
        """Request a cell; `stream` is the guest's end of its stream, `trees` are mounts of the host for the cell.

        Raises SubstrateFailed if the spawner is dead, and CapacityError if it does not read its requests.
        """
        handle = CellHandle(number)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [stream.fileno(), *trees]))]
        await self._send_with_retry(bytes([_SPAWN]) + plan, rights)
        self._handles[number] = handle
        return handle

    def kill(self, handle: CellHandle, *, reports_death: bool) -> None:
        """End a cell. `handle.gone` is set when nothing of it is left.

        `handle.dead` is set before if the spawner `reports_death`, which wakes this process once more.
        """
        if not handle.gone.is_set():
            kind = _KILL if reports_death else _END
            self._send_until_accepted(bytes([kind]) + encode([op(Verb.CELL, handle.number)]))

    async def freeze(self, handle: CellHandle, number: int) -> None:
        """Make a cell's writable space visible at `/frozen/NUMBER`. It stays after the cell's end, until `drop`.

        Raises CapacityError, SubstrateFailed.
        """
        try:
            await self._answered(_FREEZE, number, [op(Verb.CELL, handle.number)])
        except (TimeoutError, asyncio.CancelledError) as error:
            self.drop(number)
            if isinstance(error, TimeoutError):
                raise SubstrateFailed("the cell spawner does not answer") from None
            raise

    async def hold(self, handle: CellHandle, number: int, cgroup: str) -> None:
        """Make a cgroup that is removed with the cell, and thawed when the cell is killed.

        `number` is new. Raises CapacityError, SubstrateFailed.
        """
        try:
            await self._answered(_HOLD, number, [op(Verb.CELL, handle.number), op(Verb.CGROUP, cgroup)])
        except TimeoutError:
            raise SubstrateFailed("the cell spawner does not answer") from None

    async def _answered(self, request: int, number: int, plan: Plan) -> None:
        """Send a request about a cell, and wait for the answer with this number. Raises TimeoutError, too."""
        answer = self._freezing[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send_with_retry(bytes([request]) + encode([*plan, op(Verb.FROZEN, number)]))
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                await answer
        finally:
            del self._freezing[number]

    def drop(self, number: int) -> None:
        """Release a frozen writable space."""
        self._send_until_accepted(bytes([_DROP]) + encode([op(Verb.FROZEN, number)]))

    async def _send_with_retry(self, message: bytes, rights: Rights | None = None) -> None:
        deadline = time.monotonic() + ANSWER_TIMEOUT_S
        while True:
            try:
                return self._send(message, rights)
            except CapacityError:
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_S)

    def _send_until_accepted(self, message: bytes) -> None:
        try:
            self._send(message)
        except CapacityError:
            asyncio.get_running_loop().call_later(RETRY_S, self._send_until_accepted, message)
        except SubstrateFailed:
            return  # nothing to release: everything ended with the spawner

    def _send(self, message: bytes, rights: Rights | None = None) -> None:
        if self._dead or self._control is None:
            raise SubstrateFailed("the cell spawner is not running")
        try:
            self._control.sendmsg([message], rights or [])
        except BlockingIOError:
            raise CapacityError("the cell spawner has too many requests waiting") from None
        except OSError as error:
            raise SubstrateFailed(f"the cell spawner is gone: {error.strerror}") from None

    def _readable(self) -> None:
        assert self._control is not None
        for _ in range(64):  # bounded, so that a burst of messages does not starve actions
            try:
                message = self._control.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            except OSError:
                message = b""
            if not message:
                self._died()
                return
            self._handle_message(message[0], message[1:])

    def _handle_message(self, kind: int, body: bytes) -> None:
        values = Fields(body)
        number = values.number(_TAG_CELL)
        handle = self._handles.get(number)
        if kind in (_PREPARED, _FAILED) and handle is None and self._prepared:
            _resolve(self._prepared.popleft(), None if kind == _PREPARED else _failure(values))
        elif number in self._freezing:
            _resolve(self._freezing[number], _failure(values) if kind == _FAILED else None)
        elif handle is None:
            return
        elif kind == _SPAWNED:
            handle.was_spawned(values.number(_TAG_PID))
        elif kind == _FAILED:
            handle.failure = _failure(values)
            if handle.on_failure:
                handle.on_failure(handle.failure)
        elif kind == _DIED:
            handle.dead.set()
        elif kind == _EXITED:
            del self._handles[number]
            handle.has_gone()

    def _died(self) -> None:
        self._release_control()
        self._dead = SubstrateFailed(f"the cell spawner died: {self._stderr_tail()}")
        for answer in (*self._prepared, *self._freezing.values()):
            _resolve(answer, self._dead)
        self._prepared.clear()
        for handle in self._handles.values():
            handle.failure = handle.failure or self._dead
            handle.has_gone()
        self._handles.clear()

    def _stderr_tail(self) -> str:
        process = self._process
        if process is None or process.stderr is None:
            return "it was never started"
        os.set_blocking(process.stderr.fileno(), False)
        output = process.stderr.read(2000) or b""
        return output.decode("utf-8", "replace").strip() or "no reason given"

    def _release_control(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            with contextlib.suppress(OSError):  # the spawner may be dead already
                self._control.shutdown(socket.SHUT_RDWR)  # not `close` alone: forked children may have copies
            self._control.close()
            self._control = None

    async def close(self) -> None:
        """Make the spawner end all cells and itself. Raises SubstrateFailed if it does not."""
        process = self._process
        if process is None:
            return
        if self._control is not None:
            self._died()  # closes the socket, which makes the spawner stop, and fails all waiting requests
        try:
            await asyncio.to_thread(process.wait, CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)
            raise SubstrateFailed("the cell spawner did not stop in time and was killed") from None
        finally:
            if process.stderr:
                process.stderr.close()
            self._process = None


def _resolve(answer: asyncio.Future[None], error: DutyfreeError | None) -> None:
    if answer.done():  # the waiting task was cancelled
        return
    if error is None:
        answer.set_result(None)
    else:
        answer.set_exception(error)


def _failure(values: Fields) -> DutyfreeError:
    number = values.number(_TAG_ERRNO)
    verb = values.number(_TAG_STATUS)
    name = Verb(verb).name.lower().replace("_", " ") if verb in set(Verb) else "request"
    detail = values.blob(_TAG_STEP, b"").decode("utf-8", "replace")
    if verb in (Verb.SOURCE, Verb.OVERLAY):
        return shown.refusal(detail, number)
    message = f"{name} {detail}: {os.strerror(number)}"
    return CapacityError(f"no room for another cell: {message}") if number in _FULL else SubstrateFailed(message)
