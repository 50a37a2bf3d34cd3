"""A leased sandbox, as its user sees it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from dutyfree.client.stream import Stream
from dutyfree.contract import Files, Sandbox, Session, Snapshot, Terminal
from dutyfree.errors import SandboxGone
from dutyfree.model import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    DEFAULT_TIMEOUT_S,
    Action,
    Command,
    Observation,
    Unenforced,
)


class Box:
    """One sandbox, yours until the lease ends. Any number of calls may be under way at the same time.

    Every method raises InvalidRequest for a call that makes no sense, SandboxGone once the sandbox is dead, and a
    subclass of InfraFailed when the machinery failed; a command that fails is an observation.
    """

    def __init__(self, sandbox: Sandbox, renew: Callable[[float | None], None] | None = None) -> None:
        """`renew` is told for how long the lease is to last from now; without it, the lease has no end of its own."""
        self._sandbox = sandbox
        self._renew = renew
        self._forks: list[Box] = []
        self._ended = False

    @property
    def id(self) -> str:
        """The sandbox's name in spans and logs."""
        return self._sandbox.id

    @property
    def files(self) -> Files:
        """The sandbox's files, by absolute path."""
        return self._sandbox.files

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        """What the lease asked for and this machine cannot enforce: empty when everything holds."""
        return self._sandbox.unenforced

    @property
    def alive(self) -> bool:
        """Whether another action can be tried."""
        return self._sandbox.alive

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
        return await self._sandbox.run(_action(command, timeout_s, cwd, env, stdin, output_limit_bytes))

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
        return Stream(self._sandbox.stream(_action(command, timeout_s, cwd, env, stdin, output_limit_bytes)))

    @asynccontextmanager
    async def session(self, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> AsyncIterator[Session]:
        """A persistent shell for the length of the block: cwd, variables, functions and jobs survive between lines.

        Raises Unsupported where the substrate has no sessions.
        """
        async with await self._sandbox.session(cwd=cwd, env=env) as session:
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
        async with await self._sandbox.terminal(command, rows=rows, cols=cols, cwd=cwd, env=env) as terminal:
            yield terminal

    async def reset(self) -> None:
        """Put the sandbox back to how the lease gave it out: nothing of what happened in it since is left.

        Calls that are under way raise SandboxReset, sessions of before have ended. A reset that fails destroys the
        sandbox. Raises Unsupported where the substrate cannot.
        """
        await self._sandbox.reset()

    async def snapshot(self) -> Snapshot:
        """Freeze the files as they are now; the sandbox goes on. `host.lease(snapshot.image)` starts from them.

        Processes are not part of it. Raises Unsupported where the substrate cannot, and CapacityError.
        """
        return await self._sandbox.snapshot()

    async def fork(self, count: int) -> list[Box]:
        """`count` further sandboxes with the files as they are now, without the processes.

        They live until this sandbox's lease ends, unless they are destroyed before. All of them are made or none.
        Raises Unsupported where the substrate cannot, and CapacityError.
        """
        forks = [Box(sandbox, self._renew) for sandbox in await self._sandbox.fork(count)]
        self._forks += forks
        if self._ended:  # the lease has come to its end meanwhile
            await self.destroy()
            raise SandboxGone(f"sandbox {self.id} is gone")
        return forks

    async def renew(self, ttl_s: float | None = None) -> None:
        """Let the lease last for `ttl_s` seconds from now, or for as long as its pool's leases do by default.

        For rollouts that take longer: a lease of a pool ends by itself unless somebody says that it is still wanted.
        Without a pool it lasts as long as its block, and there is nothing to renew. Raises LeaseLost if it has ended.
        """
        if self._renew is not None:
            self._renew(ttl_s)

    async def destroy(self) -> None:
        """End the sandbox, and those it was forked into, before its lease does. Idempotent; raises SubstrateFailed."""
        self._ended = True
        forks, self._forks = self._forks, []
        ends = [self._sandbox.destroy(), *(fork.destroy() for fork in forks)]
        outcomes = await asyncio.gather(*ends, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


def _action(
    command: Command,
    timeout_s: float,
    cwd: str | None,
    env: Mapping[str, str] | None,
    stdin: bytes | None,
    output_limit_bytes: int,
) -> Action:
    return Action(
        command, cwd=cwd, env=env or {}, stdin=stdin, timeout_s=timeout_s, output_limit_bytes=output_limit_bytes
    )
