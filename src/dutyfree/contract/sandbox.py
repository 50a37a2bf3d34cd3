"""A sandbox, and the snapshots of its files."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from dutyfree.contract.connections import DEFAULT_DIAL_TIMEOUT_S, Connection, Datagrams, Listener
from dutyfree.contract.files import Files
from dutyfree.contract.streams import ActionStream, Session, Terminal
from dutyfree.errors import Unsupported
from dutyfree.model import (
    Action,
    Command,
    Image,
    ListeningPort,
    Metrics,
    Observation,
    SavedCache,
    Unenforced,
    Usage,
    User,
)


class Sandbox(ABC):
    """One isolated, mutable world with one owner."""

    id: str
    files: Files

    @property
    def pid(self) -> int | None:
        """A process of this machine that the sandbox cannot live without; None where there is none."""
        return None

    @property
    def inner(self) -> Sandbox:
        """The sandbox that this one wraps; the sandbox itself where it wraps none."""
        return self

    @property
    @abstractmethod
    def unenforced(self) -> tuple[Unenforced, ...]:
        """The bounds and walls that the spec asked for and that this sandbox does not have. Never silently empty."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether another action can be tried. False after `destroy` and after the sandbox's death was noticed."""

    @abstractmethod
    async def run(self, action: Action) -> Observation:
        """Run one action to its end and return what was seen.

        An action with a `user` runs with that user's ids, groups, HOME, USER, LOGNAME and SHELL, as the sandbox's own
        passwd and group files have them; entries of the action's and the sandbox's own environment stay as they are.
        Without a `cwd` it starts in the image's working directory or, where that is `/` or `/root`, in its home.

        Raises InvalidRequest (say, a cwd that is not there, or a user that is not), Unsupported for a user without
        `Capability.USERS` and for ids that the sandbox does not have, SandboxGone, CapacityError (too many actions at
        once), LinkFailed, GuestMisbehaved, SubstrateFailed, DeadlineExceeded (the sandbox did not honour the timeout).
        """

    @abstractmethod
    def stream(self, action: Action) -> ActionStream:
        """Start an action; the caller reads its output and writes its input while it runs. Raises as `run` does."""

    @abstractmethod
    async def session(
        self, *, cwd: str | None = None, env: Mapping[str, str] | None = None, user: User | None = None
    ) -> Session:
        """Open a persistent shell; all of its lines run as `user`, and so does the shell.

        Raises as `run` does, and Unsupported without `Capability.SESSIONS`.
        """

    @abstractmethod
    async def terminal(
        self,
        command: Command,
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: User | None = None,
    ) -> Terminal:
        """Start a command on a pseudo-terminal. Raises as `run` does; Unsupported without `Capability.TERMINALS`."""

    async def dial(
        self, port: int, *, address: str = "127.0.0.1", timeout_s: float = DEFAULT_DIAL_TIMEOUT_S
    ) -> Connection:
        """A connection to a TCP port inside the sandbox, on an address of its own (a literal one: no name).

        Raises PortFailed with the `errno` of the sandbox's kernel (ECONNREFUSED where nothing listens, ETIMEDOUT past
        `timeout_s`), Unsupported without `Capability.PORTS`, and otherwise as `run` does.
        """
        raise Unsupported("this sandbox has no ports of its own")

    async def listening_ports(self) -> list[ListeningPort]:
        """The TCP ports on which programs of the sandbox listen, sorted; without those of `listen`.

        Raises Unsupported without `Capability.PORTS` and where the sandbox's kernel does not list them, and otherwise
        as `run` does.
        """
        raise Unsupported("this sandbox has no ports of its own")

    async def listen(self, port: int, *, address: str = "127.0.0.1") -> Listener:
        """Listen on a TCP port inside the sandbox (0: any free one) for connections of its programs.

        Raises PortFailed (EADDRINUSE where the port is taken), Unsupported without `Capability.PORTS`, and otherwise
        as `run` does.
        """
        raise Unsupported("this sandbox has no ports of its own")

    async def datagrams(self, port: int, *, address: str = "127.0.0.1") -> Datagrams:
        """A UDP socket on a port inside the sandbox (0: any free one). Raises as `listen` does."""
        raise Unsupported("this sandbox has no ports of its own")

    async def reset(self) -> None:
        """Put the sandbox back to how it was made: its files, processes, sessions, ports and environment.

        Calls that were under way raise SandboxReset, and sessions of before have ended. The result is checked: a
        sandbox that is not clean, or a reset that failed or was cancelled, means that the sandbox is destroyed.
        Raises Unsupported without `Capability.RESET`, and otherwise as `Substrate.create` does.
        """
        raise Unsupported("this substrate cannot reset its sandboxes")

    async def snapshot(self) -> Snapshot:
        """Freeze the files as they are now; the sandbox goes on, processes and all.

        Writers stand still meanwhile, so that what is frozen is one moment. Its time does not depend on how much was
        written if nothing runs in the sandbox, which is so between actions; otherwise what was written is copied, and
        the time that this takes counts towards the timeouts of the actions under way. A limit on the disk holds for
        what is written after the last snapshot, not for what earlier ones keep.
        Raises Unsupported without `Capability.SNAPSHOT`, CapacityError, InvalidRequest for a file that cannot be kept
        (one of 7 EiB, say, all holes), and otherwise as `run` does.
        """
        raise Unsupported("this substrate cannot take snapshots")

    async def fork(self, count: int) -> list[Sandbox]:
        """`count` further sandboxes with the files as they are now; `reset` takes each back to this moment.

        All of them or none: if one cannot be made, the others are destroyed. Processes, sessions and what is in
        memory alone (/dev/shm) are not carried over. Raises Unsupported without `Capability.FORK`, and otherwise as
        `snapshot` and `Substrate.create` do.
        """
        raise Unsupported("this substrate cannot fork its sandboxes")

    async def save_cache(self, name: str) -> SavedCache:
        """Publish what the sandbox has added to its spec's cache of this name, for sandboxes that are made later.

        The new version has the files of the present one, also those that others have saved meanwhile, and over them
        this sandbox's files, links and directories; deletions are not part of it. The sandbox itself sees no change.
        Its processes stand still while its files are copied. Raises InvalidRequest for a cache that the spec does not
        name, and past the limits of layers; CapacityError past the cache's `max_bytes`, when the disk is full, and if
        a process cannot be stopped; Unsupported without `Capability.CACHES`; and otherwise as `run` does.
        """
        raise Unsupported("this substrate has no caches")

    @property
    def paused(self) -> bool:
        """Whether it was paused and not resumed since."""
        return False

    async def pause(self) -> None:
        """Stop every process, the guest included, until `resume`. Idempotent.

        What is under way goes on after `resume`: its timeout does not count the pause, its own clocks do (except in a
        virtual machine, whose clock stands still, too). Meanwhile new calls raise SandboxPaused, but for `resume`,
        `reset`, which ends the pause, `usage`, `metrics` and `destroy`. Raises Unsupported without
        `Capability.PAUSE`, CapacityError if a process cannot be stopped, and otherwise as `run` does.
        """
        raise Unsupported("this substrate cannot pause its sandboxes")

    async def resume(self) -> None:
        """Let every process of a paused sandbox go on. Idempotent; raises as `pause` does."""
        raise Unsupported("this substrate cannot pause its sandboxes")

    def usage(self) -> Usage | None:
        """What the sandbox takes of the machine now; None where that cannot be measured by reading a few files.

        Not asynchronous, and no call of an engine: a pool asks at the end of each lease. A virtual machine keeps the
        memory that its guest freed. Raises SandboxGone.
        """
        return None

    async def metrics(self) -> Metrics:
        """What the sandbox uses now, at its peak, and may use; None for what is not measured. Raises SandboxGone.

        Also of a paused sandbox.
        """
        return Metrics(time.time())

    @abstractmethod
    async def destroy(self) -> None:
        """End everything in the sandbox and give back all that it held. Idempotent; raises SubstrateFailed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.destroy()


class Snapshot(ABC):
    """The files of a sandbox at one moment. Outlives the sandbox; gone with the substrate unless it was saved."""

    @property
    @abstractmethod
    def id(self) -> str:
        """Its name in messages."""

    @property
    @abstractmethod
    def image(self) -> Image:
        """To start sandboxes from, on the substrate that took it, until `discard`. After `save`, what was saved."""

    @abstractmethod
    async def save(self) -> Image:
        """Put it into the image store and give it its digest; takes as long as reading and writing all of it.

        Idempotent. Raises CapacityError when the disk is full, SubstrateFailed, InvalidRequest after `discard` and
        past the store's limits, for which holes count as if they were data.
        """

    @abstractmethod
    async def discard(self) -> None:
        """Let go of it; sandboxes that were started from it go on. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.discard()
