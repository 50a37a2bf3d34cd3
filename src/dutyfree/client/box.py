"""Boxes: the user's handle on a leased sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from dutyfree.client.stream import Stream
from dutyfree.contract import Files, Sandbox, Session, Snapshot, Terminal
from dutyfree.errors import Unsupported
from dutyfree.leases.binding import bind
from dutyfree.leases.table import Lease
from dutyfree.model import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    DEFAULT_TIMEOUT_S,
    Action,
    Command,
    Observation,
    Unenforced,
)
from dutyfree.pool.grants import Grant
from dutyfree.substrates.guarded.files import GuardedFiles
from dutyfree.substrates.guarded.parts import GuardedSession, GuardedStream, GuardedTerminal


class LeaseKeeper(Protocol):
    """The part of a host that its boxes need; `pool.Pool` implements it."""

    def renew(self, grant: Grant, ttl_s: float | None = None) -> Lease:
        """Set the expiry of the lease to `ttl_s` from now. Raises LeaseLost if it has ended."""

    async def release(self, grant: Grant) -> None:
        """End the lease. Idempotent."""

    async def reserve_forks(self, grant: Grant, count: int) -> None:
        """Reserve places for forks within the host's limits. Raises CapacityError."""

    def forks_ended(self, grant: Grant, count: int) -> None:
        """Free the places of forks that have ended or could not be made."""


class Box:
    """One sandbox, yours until the lease ends. Any number of calls may be in progress at the same time.

    Every method raises InvalidRequest for invalid arguments, LeaseLost once the lease has ended, SandboxGone once the
    sandbox is dead, and a subclass of InfraFailed when the infrastructure fails. A command that fails is no error: its
    exit code is part of the observation.
    """

    def __init__(self, grant: Grant, keeper: LeaseKeeper) -> None:
        self._grant = grant
        self._keeper = keeper
        self._fence = grant.fence
        self._env = grant.env
        self._sandbox = grant.sandbox
        self._binding = grant.binding
        self._restore = grant.restore
        self._is_fork = False
        self._forks: list[Box] = []
        self._files = GuardedFiles(self._sandbox.files, self._fence)

    @property
    def id(self) -> str:
        """The sandbox's name in spans and logs."""
        return self._sandbox.id

    @property
    def files(self) -> Files:
        """The sandbox's files, by absolute path."""
        return self._files

    @property
    def lease(self) -> Lease:
        """The lease: its id, its fencing token, and when it expires. A fork has the lease of its parent."""
        return self._grant.lease

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        """The limits of the lease that this machine cannot enforce; empty if it enforces all of them."""
        return self._sandbox.unenforced

    @property
    def alive(self) -> bool:
        """Whether the lease and the sandbox have not ended."""
        return not self._fence.gone and self._sandbox.alive

    async def run(
        self,
        command: Command,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Observation:
        """Run a shell line (str) or an argv (list) to its end and return the observation.

        A timeout kills the whole process tree and sets `timed_out`; output past the limit is dropped and sets
        `truncated`. `env` is added to the sandbox's environment. Cancelling ends the command, not the sandbox.
        """
        action = self._action(command, timeout_s, cwd, env, stdin, output_limit_bytes)
        async with self._fence:
            return await self._sandbox.run(action)

    def stream(
        self,
        command: Command,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Stream:
        """Run a command, and read its output and write its input while it runs. Arguments as in `run`."""
        action = self._action(command, timeout_s, cwd, env, stdin, output_limit_bytes)
        self._fence.check()
        return Stream(GuardedStream(self._sandbox.stream(action), self._fence))

    @asynccontextmanager
    async def session(self, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> AsyncIterator[Session]:
        """A persistent shell for the length of the block: cwd, variables, functions and jobs survive between lines.

        Raises Unsupported if the substrate has no sessions.
        """
        async with self._fence:
            inner = await self._sandbox.session(cwd=cwd, env=self._env.under(env or {}))
        async with GuardedSession(inner, self._fence) as session:
            yield session

    @asynccontextmanager
    async def terminal(
        self,
        command: Command,
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Terminal]:
        """A command on a pseudo-terminal for the length of the block. Raises Unsupported if the substrate has none."""
        bound = self._env.under(env or {})
        async with self._fence:
            inner = await self._sandbox.terminal(command, rows=rows, cols=cols, cwd=cwd, env=bound)
        async with GuardedTerminal(inner, self._fence) as terminal:
            yield terminal

    async def reset(self) -> None:
        """Restore the sandbox to its state at the beginning of the lease. All later changes and processes are gone.

        Calls in progress raise SandboxReset, and open sessions end. A reset that fails destroys the sandbox. Raises
        Unsupported if the substrate has no reset.
        """
        async with self._fence:
            await self._sandbox.reset()
            try:
                if self._restore is not None:
                    await self._restore(self._sandbox)
                await bind(self._sandbox, self._binding, self._grant.capabilities)
            except BaseException:  # a sandbox without some of its stages or files must not be used
                await self._sandbox.destroy()
                raise

    async def snapshot(self) -> Snapshot:
        """Take a snapshot of the files; the sandbox goes on. `host.lease(snapshot.image)` starts from the snapshot.

        Processes are not part of it. Raises Unsupported if the substrate has no snapshots, and CapacityError.
        """
        async with self._fence:
            self._check_sealed()
            return await self._sandbox.snapshot()

    async def fork(self, count: int) -> list[Box]:
        """Make `count` further sandboxes with the present files of this one, without its processes.

        They live until this sandbox's lease ends, unless they are destroyed before. Either all of them are made or
        none. In a pool they count against its limits. Raises Unsupported if the substrate has no forks, and
        CapacityError.
        """
        async with self._fence:
            self._check_sealed()
            await self._keeper.reserve_forks(self._grant, count)
            try:
                forks = await self._sandbox.fork(count)
                await self._bind_forks(forks)
            except BaseException:
                self._keeper.forks_ended(self._grant, count)
                raise
            self._fence.adopt(forks)
        boxes = [self._forked(fork) for fork in forks]
        self._forks += boxes
        return boxes

    async def renew(self, ttl_s: float | None = None) -> None:
        """Set the expiry of the lease to `ttl_s` seconds from now; by default to the host's own duration of leases.

        Long rollouts need it: a lease of a pool expires unless it is renewed. Raises LeaseLost if it has ended.
        """
        self._keeper.renew(self._grant, ttl_s)

    async def close(self) -> None:
        """End the lease, and with it the sandbox and its forks. The box of a fork ends only the fork. Idempotent.

        Raises SubstrateFailed if a destruction fails.
        """
        if self._is_fork:
            await self.destroy()
        else:
            await self._keeper.release(self._grant)

    async def destroy(self) -> None:
        """Destroy the sandbox and its forks before the lease ends. Idempotent; raises SubstrateFailed."""
        if self._fence.gone:
            return  # the lease has ended, and another tenant may have the sandbox
        forks: Sequence[Box | Sandbox] = self._forks if self._is_fork else self._fence.forks
        self._forks = []
        was_counted = self._is_fork and self._sandbox.alive
        ends = [self._sandbox.destroy(), *(fork.destroy() for fork in forks)]
        outcomes = await asyncio.gather(*ends, return_exceptions=True)
        if was_counted:
            self._keeper.forks_ended(self._grant, 1)
        elif not self._is_fork and forks:
            self._keeper.forks_ended(self._grant, len(forks))
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    def _action(
        self,
        command: Command,
        timeout_s: float,
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: bytes | None,
        output_limit_bytes: int,
    ) -> Action:
        return Action(
            command,
            cwd=cwd,
            env=self._env.under(env) if env else self._env,
            stdin=stdin,
            timeout_s=timeout_s,
            output_limit_bytes=output_limit_bytes,
        )

    async def _bind_forks(self, forks: list[Sandbox]) -> None:
        """Write the secret files into forks: they are in memory, which a fork does not copy."""
        binding = self._binding.of_forks()
        if not binding.secret_files:
            return
        try:
            await asyncio.gather(*(bind(fork, binding, self._grant.capabilities) for fork in forks))
        except BaseException:
            await asyncio.gather(*(fork.destroy() for fork in forks), return_exceptions=True)
            raise

    def _forked(self, sandbox: Sandbox) -> Box:
        box = Box(self._grant, self._keeper)
        box._sandbox = sandbox
        box._binding = self._binding.of_forks()
        box._restore = None
        box._is_fork = True
        box._files = GuardedFiles(sandbox.files, self._fence)
        return box

    def _check_sealed(self) -> None:
        if self._grant.sealed:
            hint = "take it before the lease, or bind no secrets"
            raise Unsupported("a snapshot here would contain the sandbox's memory and the lease's secrets", hint=hint)
