"""The contract that every substrate keeps, in one place.

A *substrate* is a mechanism that creates sandboxes; a *sandbox* is one isolated, mutable world with one owner.
Everything that runs sandboxes, ours or a third party's, is a `Substrate`, and one conformance suite judges them all
(`dutyfree.testing`).

The life of a sandbox
---------------------
1. `Substrate.open()` is called once, before anything else. It finds out whether the substrate can work here and raises
   `SubstrateUnavailable` with a hint if it cannot. It also removes what a predecessor that was killed left behind.
2. `Substrate.create(spec)` returns a sandbox in which an action can run at once. If it raises, or is cancelled,
   nothing of the sandbox is left.
3. `run`, `stream`, `session`, `terminal` and `files` act in the sandbox, any number of them at the same time.
4. `Sandbox.reset()`, `snapshot()` and `fork()`, where the substrate can, put it back to how it was made, freeze its
   files for others to start from, and multiply it. They carry files, never processes.
5. `Sandbox.destroy()` ends every process in it and gives back all that it held. It may be called again, at any time,
   by any caller: the second call does nothing. Substrates are used through the guard (`dutyfree.substrates.guarded`),
   which gives a destruction its deadline, and carries it through when its caller is cancelled.
6. `Substrate.close()` destroys every sandbox that is still alive. If the host process is killed instead, everything is
   gone within two seconds.

Which party is at fault
-----------------------
A command that fails, is killed, or runs out of time, memory, processes or disk gives an `Observation`. Everything else
is an exception from `dutyfree.errors`, which names the party at fault. Two rules hold for every method here:

* an infrastructure failure raises a subclass of `InfraFailed` and never returns an observation;
* after `destroy`, or after the sandbox has died, every method but `destroy` raises `SandboxGone` (the calls that were
  under way when it died raise `LinkFailed` or `SubstrateFailed`).

Cancelling a call (`asyncio` cancellation) ends what it started inside the sandbox and leaves the sandbox usable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Self

from dutyfree.errors import Unsupported
from dutyfree.model import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    DEFAULT_TIMEOUT_S,
    Action,
    Capability,
    Chunk,
    Command,
    FileInfo,
    Image,
    Isolation,
    Network,
    Observation,
    SandboxSpec,
    Span,
    Unenforced,
    Usage,
)

if TYPE_CHECKING:
    from dutyfree.images.store import Store

SpanListener = Callable[[Span], None]
"""Called with each span as it ends. `None` in place of a listener makes recording cost one comparison."""

_NETWORKS = {Network.HOST: Capability.HOST_NETWORK, Network.BRIDGE: Capability.BRIDGE_NETWORK}
DEFAULT_READ_LIMIT_BYTES = 64 * 1024**2
DEFAULT_DOWNLOAD_LIMIT_BYTES = 64 * 1024**3
DEFAULT_FILE_TIMEOUT_S = 120.0
DEFAULT_TRANSFER_TIMEOUT_S = 3600.0


class Substrate(ABC):
    """A mechanism that creates sandboxes."""

    name: str
    """What people call it: `process`, `cell`, `docker` ..."""
    isolation: Isolation
    """The strongest wall that its sandboxes are claimed and probed to have."""

    @property
    @abstractmethod
    def capabilities(self) -> frozenset[Capability]:
        """What its sandboxes can do on this machine; complete after `open`."""

    @abstractmethod
    async def open(self) -> None:
        """Get ready to create sandboxes.

        Raises SubstrateUnavailable (with a hint) where the substrate cannot work on this machine.
        """

    @abstractmethod
    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        """A new sandbox, ready for its first action.

        Raises InvalidRequest for a spec that cannot be met, CapacityError when the machine is full, SubstrateFailed,
        GuestMisbehaved or DeadlineExceeded when creation went wrong. Nothing is left of a creation that raised.
        """

    def check(self, spec: SandboxSpec) -> None:
        """Raise Unsupported for a spec that takes a capability which the substrate lacks: for `create` to begin with.

        Limits that it lacks are no error: `Sandbox.unenforced` names them.
        """
        if (spec.image.layers or spec.image.reference) and Capability.IMAGES not in self.capabilities:
            raise Unsupported(f"substrate {self.name!r} cannot start sandboxes from images", hint="use cells")
        needed = _NETWORKS.get(spec.network)
        if needed is not None and needed not in self.capabilities:
            raise Unsupported(f"substrate {self.name!r} has no network of the kind {spec.network.value!r}")

    @property
    def emulated(self) -> bool:
        """Whether its sandboxes run on processors emulated in software: a caveat to every number about them."""
        return False

    @property
    def version(self) -> str:
        """Name and version of the third-party engine that runs its sandboxes, if there is one; known after `open`."""
        return ""

    @property
    def snapshots_hold_memory(self) -> bool:
        """Whether snapshots and forks are made from all that is in a sandbox's memory, secrets included."""
        return False

    @property
    def has_default_image(self) -> bool:
        """Whether it can create a sandbox from a spec that names no image."""
        return True

    @property
    def store(self) -> Store | None:
        """Where its images are kept; None where it has none of its own."""
        return None

    @property
    def builds_with(self) -> str | None:
        """The name of the substrate that runs the lines of recipes for it; None where it does so itself."""
        return None

    def named_image(self, name: str) -> Image:
        """The image of this name, to start sandboxes from. Raises InvalidRequest; Unsupported where there are none."""
        raise Unsupported(f"substrate {self.name!r} has no images")

    @abstractmethod
    async def close(self) -> None:
        """Destroy every sandbox that is still alive, and free all resources. Idempotent; raises SubstrateFailed."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


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

        Raises InvalidRequest (say, a cwd that is not there), SandboxGone, CapacityError (too many actions at once),
        LinkFailed, GuestMisbehaved, SubstrateFailed, DeadlineExceeded (the sandbox did not honour the timeout).
        """

    @abstractmethod
    def stream(self, action: Action) -> ActionStream:
        """Start an action; the caller reads its output and writes its input while it runs. Raises as `run` does."""

    @abstractmethod
    async def session(self, *, cwd: str | None = None, env: Mapping[str, str] | None = None) -> Session:
        """Open a persistent shell. Raises as `run` does, and Unsupported without `Capability.SESSIONS`."""

    @abstractmethod
    async def terminal(
        self,
        command: Command,
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Terminal:
        """Start a command on a pseudo-terminal. Raises as `run` does; Unsupported without `Capability.TERMINALS`."""

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

    def usage(self) -> Usage | None:
        """What the sandbox takes of the machine now; None where that cannot be measured by reading a few files.

        Not asynchronous, and no call of an engine: a pool asks at the end of each lease. A virtual machine keeps the
        memory that its guest freed. Raises SandboxGone.
        """
        return None

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


class ActionStream(ABC):
    """An action under way: an async iterator of chunks, with the observation at its end.

    Leaving the `async with` block, or cancelling, ends the action's whole process tree. A reader that stops reading
    makes the command wait (its pipe fills up); it costs no memory on the host.
    """

    @abstractmethod
    def __aiter__(self) -> AsyncIterator[Chunk]:
        """The chunks as they come; ends when the action has ended."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Give the command input; returns when the guest has room for it. Raises InvalidRequest after `end_input`."""

    @abstractmethod
    async def end_input(self) -> None:
        """Close the command's standard input. Idempotent."""

    @abstractmethod
    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group. Does nothing once it has ended."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill the whole process tree, also what left its process group. Does nothing once it has ended."""

    @abstractmethod
    async def wait(self) -> Observation:
        """The observation (output that was not read is dropped; `stdout` and `stderr` are empty). Raises as `run`."""

    @abstractmethod
    async def __aenter__(self) -> Self: ...

    @abstractmethod
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Session(ABC):
    """A persistent shell: cwd, variables, functions and background jobs survive from action to action."""

    @abstractmethod
    async def run(
        self,
        line: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
    ) -> Observation:
        """Run a line (or a script) in the shell; one at a time, later calls wait their turn.

        A timeout interrupts the line; the session survives if the shell does. Raises SessionEnded after the shell has
        exited (the line that made it exit still gives its observation), otherwise as `Sandbox.run` does.
        """

    @abstractmethod
    async def interrupt(self) -> None:
        """Stop the running line as Ctrl-C would; the session goes on. Does nothing between lines."""

    @abstractmethod
    async def close(self) -> None:
        """End the shell and its jobs. Idempotent."""

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether another line can be run."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Terminal(ABC):
    """A command on a pseudo-terminal: raw bytes in and out."""

    @abstractmethod
    async def read(self) -> bytes:
        """The next output; empty once the command has ended and all was read. Raises as `Sandbox.run` does."""

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send input, as if it was typed."""

    @abstractmethod
    async def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal's window; the command gets SIGWINCH."""

    @abstractmethod
    async def wait(self) -> Observation:
        """The observation, when the command has ended (its output is what `read` gave)."""

    @abstractmethod
    async def close(self) -> None:
        """Hang up: kill the command's process tree. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Files(ABC):
    """Files of a sandbox, by absolute path. All paths are resolved inside the sandbox, symlinks included.

    Every method raises FileFailed (with `errno`) for what the sandbox's kernel refused, and otherwise as
    `Sandbox.run` does. Past `timeout_s` it raises FileFailed with ETIMEDOUT, and what was under way in the sandbox is
    killed: code in there can stop a file operation for as long as it likes. The sandbox can be used as before.
    """

    @abstractmethod
    async def read(
        self, path: str, *, limit_bytes: int = DEFAULT_READ_LIMIT_BYTES, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> bytes:
        """The whole content. Raises FileFailed with EFBIG past `limit_bytes`: use `download` for big files."""

    @abstractmethod
    async def write(
        self, path: str, data: bytes, *, mode: int = 0o644, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        """Replace the file in one step: a reader sees the old content or the new. Missing directories are made."""

    @abstractmethod
    async def append(self, path: str, data: bytes, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        """Add to the end of the file; creates it."""

    @abstractmethod
    async def list(self, path: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> list[FileInfo]:
        """The entries of a directory, sorted by name."""

    @abstractmethod
    async def stat(self, path: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> FileInfo:
        """What is at `path`; a final symlink is not followed."""

    @abstractmethod
    async def mkdir(
        self, path: str, *, parents: bool = True, mode: int = 0o755, timeout_s: float = DEFAULT_FILE_TIMEOUT_S
    ) -> None:
        """Make a directory; with `parents`, one that is there already is fine."""

    @abstractmethod
    async def move(self, source: str, target: str, *, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        """Rename, replacing the target."""

    @abstractmethod
    async def remove(self, path: str, *, recursive: bool = False, timeout_s: float = DEFAULT_FILE_TIMEOUT_S) -> None:
        """Remove a file or an empty directory, or a whole tree; symlinks are removed, never followed."""

    @abstractmethod
    async def upload(
        self, local: str | PathLike[str], path: str, *, timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S
    ) -> None:
        """Stream a local file, or a local directory's tree, into the sandbox. There is no limit on its size."""

    @abstractmethod
    async def download(
        self,
        path: str,
        local: str | PathLike[str],
        *,
        limit_bytes: int = DEFAULT_DOWNLOAD_LIMIT_BYTES,
        timeout_s: float = DEFAULT_TRANSFER_TIMEOUT_S,
    ) -> None:
        """Stream a file, or a directory's tree, out of the sandbox.

        The sandbox cannot write outside `local`: entries that would (absolute names, `..`, links
        that leave the tree, device nodes) raise GuestMisbehaved or are refused as FileFailed, and nothing past
        `limit_bytes` is taken.
        """
