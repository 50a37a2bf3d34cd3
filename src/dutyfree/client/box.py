"""A leased sandbox, as its user sees it."""

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
    """What a box needs of the host that gave it out; `pool.Pool` is one."""

    def renew(self, grant: Grant, ttl_s: float | None = None) -> Lease:
        """Let the lease last for `ttl_s` from now. Raises LeaseLost if it has ended."""

    async def release(self, grant: Grant) -> None:
        """End the lease. Idempotent."""

    async def reserve_forks(self, grant: Grant, count: int) -> None:
        """Count forks against the host's limits before they are made. Raises CapacityError."""

    def forks_ended(self, grant: Grant, count: int) -> None:
        """Free the places of forks that are gone, or were never made."""


class Box:
    """One sandbox, yours until the lease ends. Any number of calls may be in progress at the same time.

    Every method raises InvalidRequest for a call that makes no sense, LeaseLost once the lease has ended, SandboxGone
    once the sandbox is dead, and a subclass of InfraFailed when the machinery failed; a command that fails gives an
    observation.
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
        """What the lease asked for and this machine cannot enforce: empty when everything holds."""
        return self._sandbox.unenforced

    @property
    def alive(self) -> bool:
        """Whether another action can be tried."""
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
        """Run a shell line (str) or an argv (list) to its end and return what was seen.

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
        """Run a command whose output is read, and input written, while it runs; arguments as in `run`."""
        action = self._action(command, timeout_s, cwd, env, stdin, output_limit_bytes)
        self._fence.check()
        return Stream(GuardedStream(self._sandbox.stream(action), self._fence))

    @asynccontextmanager
    async def session(self, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> AsyncIterator[Session]:
        """A persistent shell for the length of the block: cwd, variables, functions and jobs survive between lines.

        Raises Unsupported where the substrate has no sessions.
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
        """A command on a pseudo-terminal for the length of the block. Raises Unsupported where there are none."""
        bound = self._env.under(env or {})
        async with self._fence:
            inner = await self._sandbox.terminal(command, rows=rows, cols=cols, cwd=cwd, env=bound)
        async with GuardedTerminal(inner, self._fence) as terminal:
            yield terminal

    async def reset(self) -> None:
        """Put the sandbox back to how the lease gave it out: nothing of what happened in it since is left.

        Calls that are in progress raise SandboxReset, sessions of before have ended. A reset that fails destroys the
        sandbox. Raises Unsupported where the substrate cannot.
        """
        async with self._fence:
            await self._sandbox.reset()
            try:
                if self._restore is not None:
                    await self._restore(self._sandbox)
                await bind(self._sandbox, self._binding, self._grant.capabilities)
            except BaseException:  # half of what was leased is no sandbox to go on with
                await self._sandbox.destroy()
                raise

    async def snapshot(self) -> Snapshot:
        """Freeze the files as they are now; the sandbox goes on. `host.lease(snapshot.image)` starts from them.

        Processes are not part of it. Raises Unsupported where the substrate cannot, and CapacityError.
        """
        async with self._fence:
            self._check_sealed()
            return await self._sandbox.snapshot()

    async def fork(self, count: int) -> list[Box]:
        """`count` further sandboxes with the files as they are now, without the processes.

        They live until this sandbox's lease ends, unless they are destroyed before. All of them are made or none; in a
        pool they count against its limits. Raises Unsupported where the substrate cannot, and CapacityError.
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
        """Let the lease last for `ttl_s` seconds from now, or for as long as the host's leases do by default.

        For rollouts that take longer: a lease of a pool expires unless it is renewed. Raises LeaseLost if it has ended.
        """
        self._keeper.renew(self._grant, ttl_s)

    async def close(self) -> None:
        """End the lease, and with it the sandbox and its forks; of a fork, end the fork alone. Idempotent.

        Raises SubstrateFailed for a sandbox that does not end.
        """
        if self._is_fork:
            await self.destroy()
        else:
            await self._keeper.release(self._grant)

    async def destroy(self) -> None:
        """End the sandbox, and those it was forked into, before its lease ends. Idempotent; raises SubstrateFailed."""
        if self._fence.gone:
            return  # the lease has ended, and another tenant may have the sandbox
        forks: Sequence[Box | Sandbox] = self._forks if self._is_fork else self._fence.forks
        self._forks = []
        was_counted = self._is_fork and self._sandbox.alive
        ends = [self._sandbox.destroy(), *(fork.destroy() for fork in forks)]
        outcomes = await asyncio.gather(*ends, return_exceptions=True)
        if was_counted:
            self._keeper.forks_ended(self._grant, 1)
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
        """Write secret files into forks: they are in memory, which a fork does not take along."""
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
            raise Unsupported("a snapshot here holds the sandbox's memory, and with it the lease's secrets", hint=hint)
