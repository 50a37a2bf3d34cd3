"""The background processes and kept sessions of a lease: tables for each of its sandboxes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from typing import Final

from dutyfree.background.process import BackgroundProcess
from dutyfree.background.ring import Budget, Ring
from dutyfree.background.sessions import SessionTable
from dutyfree.background.terminal import TerminalStream
from dutyfree.background.watching import WatchStream
from dutyfree.checked import text, whole
from dutyfree.contract import ActionStream, Sandbox, Terminal, Watch
from dutyfree.errors import CapacityError, DutyfreeError, InvalidRequest, SandboxGone
from dutyfree.model import Action, Command

MAX_RUNNING: Final = 1024
"""The most background processes that run in one sandbox at the same time."""
MAX_FINISHED: Final = 256
"""How many finished processes of one sandbox stay listed, with their output."""
MAX_KEEP_BYTES: Final = 64 * 1024**2
MAX_SANDBOX_BYTES: Final = 256 * 1024**2
"""The most output that is kept for one sandbox, apart from the 4 KiB that each process always may have."""

MAX_TABLES: Final = 64
"""From so many sandboxes of one lease on, the processes of forks that have ended are forgotten."""


class ProcessTable:
    """The background processes of one sandbox: those that run, and the last that have finished; and its sessions."""

    def __init__(self, sandbox: Sandbox, numbers: itertools.count[int]) -> None:
        self._sandbox = sandbox
        self._numbers = numbers
        self._running: dict[str, BackgroundProcess] = {}
        self._finished: dict[str, BackgroundProcess] = {}
        self._budget = Budget(MAX_SANDBOX_BYTES)
        self.sessions = SessionTable()

    def start(
        self,
        action: Action,
        keep_bytes: int,
        terminal: tuple[int, int] | None = None,
        reader_wait_s: float = 0.0,
    ) -> BackgroundProcess:
        """Start `action`; with `stdin=None`, its input stays open. Raises CapacityError, and as `Sandbox.stream`.

        With `terminal` (rows, columns) it runs on a pseudo-terminal of that size. `reader_wait_s`: how long the process
        waits for a reader that is too slow.

        It does not await anything: either the process is in the table, or nothing was started.
        """
        self._check(keep_bytes)
        stream = self._sandbox.stream(action) if terminal is None else self._on_terminal(action, *terminal)
        takes_input = action.stdin is None
        return self._begin(action.command, stream, keep_bytes, takes_input=takes_input, reader_wait_s=reader_wait_s)

    def start_watch(self, watch: Watch, command: Command, keep_bytes: int) -> BackgroundProcess:
        """Watch a directory. Raises as `start` does."""
        self._check(keep_bytes)
        return self._begin(command, WatchStream(watch), keep_bytes, takes_input=False)

    def _check(self, keep_bytes: int) -> None:
        whole("keep_output_bytes", keep_bytes, least=1, most=MAX_KEEP_BYTES)
        if len(self._running) >= MAX_RUNNING:
            hint = "end some of them, or wait for one"
            raise CapacityError(f"{MAX_RUNNING} background processes run in this sandbox already", hint=hint)

    def _begin(
        self,
        command: Command,
        stream: ActionStream,
        keep_bytes: int,
        *,
        takes_input: bool,
        reader_wait_s: float = 0.0,
    ) -> BackgroundProcess:
        number, ring = next(self._numbers), Ring(keep_bytes, self._budget)
        process = BackgroundProcess(
            number, command, stream, ring, takes_input=takes_input, on_end=self._ended, reader_wait_s=reader_wait_s
        )
        self._running[process.id] = process
        return process

    def _on_terminal(self, action: Action, rows: int, cols: int) -> TerminalStream:
        def opened() -> Awaitable[Terminal]:
            command, cwd, env, user = action.command, action.cwd, action.env, action.user
            return self._sandbox.terminal(command, rows=rows, cols=cols, cwd=cwd, env=env, user=user)

        return TerminalStream(opened, action.timeout_s)

    def get(self, process_id: str) -> BackgroundProcess:
        """The process of that id. Raises InvalidRequest if there is none, or none any more."""
        process_id = text("the id of a process", process_id)
        process = self._running.get(process_id) or self._finished.get(process_id)
        if process is None:
            hint = f"only the last {MAX_FINISHED} finished processes of a sandbox stay listed"
            raise InvalidRequest(f"there is no background process {process_id!r} in this sandbox", hint=hint)
        return process

    def all(self) -> list[BackgroundProcess]:
        """Those that run and the last that have finished, in the order of their starts."""
        return sorted((*self._finished.values(), *self._running.values()), key=lambda process: process.number)

    def end(self, error: DutyfreeError) -> set[asyncio.Task[None]]:
        """Count all of them as ended with `error`. Returns the tasks that end with the sandbox."""
        return {task for process in self.all() if not (task := process.end(error)).done()}

    def _ended(self, process: BackgroundProcess) -> None:
        del self._running[process.id]
        self._finished[process.id] = process
        if len(self._finished) > MAX_FINISHED:
            self._finished.pop(next(iter(self._finished))).forget_output()


class Background:
    """The background processes of one lease, in its sandbox and in the forks of that."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._tables: dict[Sandbox, ProcessTable] = {}

    def of(self, sandbox: Sandbox) -> ProcessTable:
        """The table of one sandbox."""
        if (table := self._tables.get(sandbox)) is None:
            if len(self._tables) >= MAX_TABLES:
                self._forget_ended()
            table = self._tables[sandbox] = ProcessTable(sandbox, self._numbers)
        return table

    def end(self, error: DutyfreeError) -> set[asyncio.Task[None]]:
        """Count all processes as ended with `error`, and forget their output; their sandboxes are about to end them.

        Returns the tasks that end with the sandboxes.
        """
        return set().union(*(table.end(error) for table in self._tables.values()))

    def _forget_ended(self) -> None:
        for sandbox in [each for each in self._tables if not each.alive]:
            self._tables.pop(sandbox).end(SandboxGone(f"sandbox {sandbox.id} is gone"))
