"""The context of a check: the substrate under test, and sandboxes that are destroyed after the check."""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from dutyfree.contract import Sandbox, SpanListener, Substrate
from dutyfree.model import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    Action,
    Capability,
    Command,
    Isolation,
    Observation,
    SandboxSpec,
    Writes,
)
from dutyfree.testing.expect import Broken

T = TypeVar("T")

ACTION_TIMEOUT_S = 60.0
EMULATION = 4.0
"""The factor by which time limits grow on emulated processors."""
Killer = Callable[[Sandbox], bool]
"""Kills a sandbox from outside, as a crash would; returns False if it cannot."""


class Context:
    """The substrate and the resources of one check. `clean_up` removes all resources after the check."""

    def __init__(
        self,
        substrate: Substrate,
        *,
        another: Callable[[], Substrate] | None = None,
        killer: Killer | None = None,
    ) -> None:
        self.substrate = substrate
        self._another = another
        self._killer = killer or kill_by_pid
        self._sandboxes: list[Sandbox] = []
        self._substrates: list[Substrate] = []
        self._scratches: list[tuple[Sandbox, str]] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self._folders: list[tempfile.TemporaryDirectory[str]] = []

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities that the substrate claims."""
        return self.substrate.capabilities

    @property
    def patience(self) -> float:
        """The factor for the checks' time windows and limits: more than 1 on emulated processors."""
        return EMULATION if self.substrate.emulated else 1.0

    def times(self, count: int) -> int:
        """The number of repetitions instead of `count`: fewer on emulated processors, at least 2."""
        return max(2, math.ceil(count / self.patience))

    @property
    def writable_places(self) -> tuple[Writes, ...]:
        """The kinds of upper to test. A virtual machine has only one: it keeps all files on its disk."""
        return tuple(Writes) if self.substrate.isolation < Isolation.MICROVM else (SandboxSpec().writes,)

    async def sandbox(self, spec: SandboxSpec | None = None, on_span: SpanListener | None = None) -> Sandbox:
        """Create a sandbox; it is destroyed after the check."""
        sandbox = await self.substrate.create(spec or SandboxSpec(), on_span)
        self._sandboxes.append(sandbox)
        return sandbox

    async def forks(self, sandbox: Sandbox, count: int) -> list[Sandbox]:
        """Fork a sandbox; the forks are destroyed after the check."""
        forks = await sandbox.fork(count)
        self._sandboxes += forks
        return forks

    async def another_substrate(self) -> Substrate | None:
        """Open a second substrate of the same kind, which the check may close; None if `another` was not given."""
        if self._another is None:
            return None
        substrate = self._another()
        self._substrates.append(substrate)
        await substrate.open()
        return substrate

    async def scratch(self, sandbox: Sandbox) -> str:
        """Make an empty directory in the sandbox. It is removed after the check if the host shares the files."""
        path = f"/tmp/conformance-{secrets.token_hex(8)}"
        made = await run(sandbox, ["mkdir", path])
        if not made.ok:
            raise Broken(f"mkdir {path} failed: {made.stderr!r}")
        self._scratches.append((sandbox, path))
        return path

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task beside the check; it is cancelled after the check if it still runs."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    def folder(self) -> Path:
        """Make an empty directory on the host; it is removed after the check."""
        folder = tempfile.TemporaryDirectory(prefix="conformance-", dir="/tmp")
        self._folders.append(folder)
        return Path(folder.name)

    def kill(self, sandbox: Sandbox) -> bool:
        """Kill the sandbox from outside, as a crash would; returns False if that is impossible."""
        return self._killer(sandbox)

    async def clean_up(self) -> None:
        """Cancel the tasks, destroy the sandboxes, remove the directories. Raises what `destroy` and `close` raise."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if Capability.PRIVATE_FILES not in self.substrate.capabilities:
            await self._remove_scratches()
        for sandbox in self._sandboxes:
            await sandbox.destroy()
        for substrate in self._substrates:
            await substrate.close()
        for folder in self._folders:
            folder.cleanup()

    async def _remove_scratches(self) -> None:
        for sandbox, path in self._scratches:
            if not sandbox.alive:
                sandbox = await self.sandbox()
            await run(sandbox, ["rm", "-rf", path])


async def run(
    sandbox: Sandbox,
    command: Command,
    *,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    stdin: bytes | None = None,
    timeout_s: float = ACTION_TIMEOUT_S,
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
) -> Observation:
    """Run one action: shorthand for `sandbox.run(Action(...))`."""
    action = Action(command, cwd, env or {}, stdin, timeout_s, output_limit_bytes)
    return await sandbox.run(action)


@asynccontextmanager
async def host_variable(name: str, value: str) -> AsyncIterator[None]:
    """Set a variable in the host's environment within the block."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def kill_by_pid(sandbox: Sandbox) -> bool:
    """Kill the sandbox's first process, where it has a `pid` on this machine."""
    pid = sandbox.pid
    if pid is None or pid <= 1:
        return False
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError as error:
        raise Broken(f"the sandbox says that its first process is {pid}, but no such process exists") from error
    except PermissionError:
        return False
    return True
