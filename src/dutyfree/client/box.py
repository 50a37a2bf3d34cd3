"""Boxes: the user's handle on a leased sandbox."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

from dutyfree.checked import FilePath, data_bytes, path_or_none, path_text, seconds, table, text, whole, wrong
from dutyfree.client.bound import bind_again, bind_forks, destroy_all
from dutyfree.client.dropped import warn_of_dropped_box
from dutyfree.client.keeper import LeaseKeeper
from dutyfree.client.ports import DEFAULT_PORT_TIMEOUT_S, Forward, check_dial, forward, wait_for_port
from dutyfree.client.process import UNLIMITED_BYTES, Process, terminal_size
from dutyfree.client.stream import Stream
from dutyfree.contract import DEFAULT_DIAL_TIMEOUT_S, Connection, Files, Sandbox, Session, Snapshot, Terminal
from dutyfree.errors import InvalidRequest
from dutyfree.leases.secret import Secret
from dutyfree.leases.table import Lease, check_labels
from dutyfree.model import (
    DEFAULT_KEEP_OUTPUT_BYTES,
    DEFAULT_OUTPUT_LIMIT_BYTES,
    DEFAULT_TIMEOUT_S,
    Action,
    Command,
    ListeningPort,
    Metrics,
    Observation,
    ProcessInfo,
    SavedCache,
    Unenforced,
    User,
)
from dutyfree.model.action import MAX_TIMEOUT_S
from dutyfree.pool.grants import Grant
from dutyfree.substrates.guarded.connections import GuardedConnection
from dutyfree.substrates.guarded.files import GuardedFiles
from dutyfree.substrates.guarded.parts import GuardedSession, GuardedStream, GuardedTerminal

if TYPE_CHECKING:
    from dutyfree.client.action_log import ActionLog
    from dutyfree.client.egress import BoxEgress
    from dutyfree.client.git import BoxGit


class Box:
    """One sandbox, yours until the lease ends. Any number of calls may be in progress at the same time.

    Every method raises InvalidRequest for arguments of a wrong type or value, LeaseLost once the lease has ended,
    SandboxGone once the sandbox is dead, and a subclass of InfraFailed when the infrastructure fails. A command that
    fails is no error: its exit code is part of the observation.
    """

    def __init__(self, grant: Grant, keeper: LeaseKeeper, *, warns: bool = False) -> None:
        """With `warns`, a box that is dropped while its lease lasts gives a warning."""
        self._warns = warns
        self._grant = grant
        self._keeper = keeper
        self._fence = grant.fence
        self._sandbox = grant.sandbox
        self._binding = grant.binding
        self._user = grant.binding.user
        self._workdir = grant.binding.workdir
        self._restore = grant.restore
        self._is_fork = False
        self._forks: list[Box] = []
        self._files = self._fenced(self._sandbox)
        self._log: ActionLog | None = None

    def detach(self) -> str:
        """Let the lease go on without this box, which may be dropped now. Returns the id for `host.get`."""
        self._warns = False
        return self.lease.id

    def __del__(self) -> None:
        # Not at the interpreter's exit, when the host ends all its leases anyway.
        if self._warns and not self._fence.gone and not sys.is_finalizing():
            warn_of_dropped_box(self._grant.lease.id)

    @property
    def id(self) -> str:
        """The sandbox's name in spans and logs."""
        return self._sandbox.id

    @property
    def files(self) -> Files:
        """The sandbox's files, by absolute path, with the rights of the lease's user; see `Files.as_user`."""
        return self._files

    @property
    def git(self) -> BoxGit:
        """Changes of a git repository of the sandbox, as patches."""
        from dutyfree.client.git import BoxGit

        return BoxGit(self.run)

    @property
    def lease(self) -> Lease:
        """The lease: its id, its fencing token, and when it expires. A fork has the lease of its parent."""
        return self._grant.lease

    @property
    def env(self) -> Mapping[str, str]:
        """The environment that the lease adds to each action, read-only; printing it masks the values of secrets.

        It is what `set_env` has made of it so far, without the image's own environment.
        """
        return MappingProxyType(self._grant.env)

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        """The limits of the lease that this machine cannot enforce; empty if it enforces all of them."""
        return self._sandbox.unenforced

    @property
    def egress(self) -> BoxEgress:
        """Rules and journal of what its programs reach. Raises InvalidRequest for a lease without egress by name."""
        if self._grant.egress is None:
            raise InvalidRequest("this lease has no egress by name", hint="lease with network=Egress(allow=[...])")
        from dutyfree.client.egress import BoxEgress

        return BoxEgress(self._grant.egress, self._sandbox, self._fence)

    @property
    def alive(self) -> bool:
        """Whether the lease and the sandbox have not ended."""
        return not self._fence.gone and self._sandbox.alive

    async def run(
        self,
        command: Command,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        cwd: FilePath | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
        user: User | None = None,
        merge: bool = False,
        check: bool = False,
    ) -> Observation:
        """Run a shell line (str) or an argv (list) to its end and return the observation.

        A timeout kills the whole process tree and sets `timed_out`; output past the limit is dropped and sets
        `truncated`. `env` is added to the sandbox's environment. Cancelling ends the command, not the sandbox. It runs
        as `user`, a name or a uid of the sandbox, by default as the lease's user. Raises InvalidRequest for a user that
        the sandbox does not have, and Unsupported if the substrate has no users.

        With `merge`, stderr goes to stdout, in the order in which it was written, and `stderr` is empty. With `check`,
        a command that does not exit with code 0 raises ActionFailed, which has the observation.

        It returns when the command itself has ended. What it left in the background (`cmd &`) goes on, without a
        reader, until the sandbox ends or is reset; `start` keeps hold of a process.
        """
        action = self._action(command, timeout_s, cwd, env, stdin, output_limit_bytes, user, merge)
        with self._fence:
            running = self._sandbox.run(action)
            seen = await (running if self._log is None else self._log.observed(action.command, running))
        return seen.check() if check else seen

    def stream(
        self,
        command: Command,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        cwd: FilePath | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | None = None,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
        user: User | None = None,
        merge: bool = False,
    ) -> Stream:
        """Run a command, and read its output and write its input while it runs. Arguments as in `run`."""
        action = self._action(command, timeout_s, cwd, env, stdin, output_limit_bytes, user, merge)
        self._fence.check()
        return Stream(GuardedStream(self._sandbox.stream(action), self._fence))

    async def start(
        self,
        command: Command,
        *,
        cwd: FilePath | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        timeout_s: float | None = None,
        keep_output_bytes: int = DEFAULT_KEEP_OUTPUT_BYTES,
        user: User | None = None,
        merge: bool = False,
        terminal: tuple[int, int] | None = None,
        reader_wait_s: float = 0.0,
    ) -> Process:
        """Start a command in the background. It runs until it ends or the lease does, whether or not anyone reads it.

        With `stdin`, `Process.write` gives it input; otherwise its input is empty. A timeout kills it as in `run`;
        None is the longest that there is, 7 days. The last `keep_output_bytes` of its output are kept. `user` and
        `merge` are as in `run`. With `terminal`, its rows and columns, it runs on a pseudo-terminal: it takes input,
        all that it writes is stdout, and `Process.resize` changes the size. With `reader_wait_s`, a process whose
        unread output fills what is kept waits for its reader, until that long after the last `Process.read`; without,
        the oldest output is lost. Raises CapacityError past 1,024 in one sandbox. What the sandbox refuses (say, a
        missing `cwd`) raises from `Process.wait` and `Process.output`.
        """
        limit_s = MAX_TIMEOUT_S if timeout_s is None else timeout_s
        if not isinstance(stdin, bool):
            raise wrong(
                "stdin", stdin, "True or False", hint="`Process.write` gives input to a process with stdin=True"
            )
        size = None if terminal is None else terminal_size(terminal)
        wait_s = reader_wait_s and seconds("reader_wait_s", reader_wait_s, most_s=MAX_TIMEOUT_S)
        no_input = None if stdin or size is not None else b""
        action = self._action(command, limit_s, cwd, env, no_input, UNLIMITED_BYTES, user, merge)
        await asyncio.sleep(0)  # others have their turn between the starts of a caller that starts hundreds
        self._fence.check()
        process = self._grant.processes(self._sandbox).start(action, keep_output_bytes, size, wait_s)
        if self._log is not None:
            await self._log.started(action.command, f"runs in the background as {process.id}")
        return Process(process, self._fence)

    async def start_watch(
        self,
        path: FilePath,
        *,
        recursive: bool = False,
        keep_output_bytes: int = DEFAULT_KEEP_OUTPUT_BYTES,
        user: User | None = None,
    ) -> Process:
        """Watch a directory in the background, as `files.watch` does, until `Process.kill` or the lease's end.

        Its output is JSON, one line for each change: `kind`, `path`, and where they matter `is_directory` and
        `moved_from`. The first line, of the kind `ready`, comes once every later change is seen. What keeps it from
        watching raises from `Process.read` and `output`. Raises CapacityError as `start` does.
        """
        place, user = path_text("path", path), self._user if user is None else user
        files = self._sandbox.files if user is None else self._sandbox.files.as_user(user)
        self._fence.check()
        watch = files.watch(place, recursive=recursive)
        process = self._grant.processes(self._sandbox).start_watch(watch, ("watch", place), keep_output_bytes)
        return Process(process, self._fence)

    async def processes(self) -> list[ProcessInfo]:
        """The background processes of this sandbox by their start: those that run, and the last 256 that finished."""
        self._fence.check()
        return [each.info() for each in self._grant.processes(self._sandbox).all()]

    def process(self, process_id: str) -> Process:
        """A background process by its id, also one that was started through another box of the same lease.

        Raises InvalidRequest if there is none of that id, or if it finished before the last 256 did.
        """
        self._fence.check()
        return Process(self._grant.processes(self._sandbox).get(process_id), self._fence)

    @asynccontextmanager
    async def session(
        self, *, cwd: FilePath | None = None, env: Mapping[str, str] | None = None, user: User | None = None
    ) -> AsyncIterator[Session]:
        """A persistent shell for the length of the block: cwd, variables, functions and jobs survive between lines.

        `user` is that of all its lines, by default the lease's. Raises Unsupported if the substrate has no sessions.
        """
        with self._fence:
            inner = await self._open_session(cwd, env, user)
        async with self._fenced_session(inner) as session:
            yield session

    async def keep_session(
        self,
        name: str,
        *,
        cwd: FilePath | None = None,
        env: Mapping[str, str] | None = None,
        user: User | None = None,
    ) -> Session:
        """A persistent shell that lives until it is closed, or until the lease ends or the sandbox is reset.

        `kept_session` finds it by its name (1 to 128 characters, unique in the sandbox) from any box of the lease; the
        task and the box that opened it may end before. Raises InvalidRequest if there is one of that name,
        CapacityError past 64 in one sandbox, and otherwise as `session`.
        """
        opening = partial(self._open_session, cwd, env, user)
        with self._fence:
            inner = await self._grant.processes(self._sandbox).sessions.keep(name, opening)
        return self._fenced_session(inner)

    async def kept_session(self, name: str) -> Session:
        """A session of `keep_session` by its name. Raises InvalidRequest if there is none, or its shell has ended."""
        self._fence.check()
        return self._fenced_session(self._grant.processes(self._sandbox).sessions.get(name))

    @asynccontextmanager
    async def terminal(
        self,
        command: Command,
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: FilePath | None = None,
        env: Mapping[str, str] | None = None,
        user: User | None = None,
    ) -> AsyncIterator[Terminal]:
        """A command on a pseudo-terminal for the length of the block. Raises Unsupported if the substrate has none."""
        bound, cwd = self._under(env), path_or_none("cwd", cwd)
        user = self._user if user is None else user
        cwd = self._workdir if cwd is None else cwd
        with self._fence:
            inner = await self._sandbox.terminal(command, rows=rows, cols=cols, cwd=cwd, env=bound, user=user)
        async with GuardedTerminal(inner, self._fence) as terminal:
            yield terminal

    async def dial(
        self, port: int, *, address: str = "127.0.0.1", timeout_s: float = DEFAULT_DIAL_TIMEOUT_S
    ) -> Connection:
        """A connection to a TCP port inside the sandbox; close it, or use it in a `with` block.

        Raises PortFailed where no program listens there, and Unsupported if the substrate has no ports.
        """
        check_dial(port, address, timeout_s)
        async with self._fence:
            inner = await self._sandbox.dial(port, address=address, timeout_s=timeout_s)
        return GuardedConnection(inner, self._fence)

    async def wait_for_port(
        self, port: int, *, address: str = "127.0.0.1", timeout_s: float = DEFAULT_PORT_TIMEOUT_S
    ) -> None:
        """Return once a program listens on the port, which sees one connection that is closed at once.

        Raises PortFailed with ETIMEDOUT if none does so in time.
        """
        await wait_for_port(self._dialler(port, address), port, timeout_s)

    async def ports(self) -> list[ListeningPort]:
        """The TCP ports on which programs of the sandbox listen, sorted."""
        async with self._fence:
            return await self._sandbox.listening_ports()

    @asynccontextmanager
    async def forward(
        self,
        port: int,
        *,
        address: str = "127.0.0.1",
        local_port: int = 0,
        local_address: str = "127.0.0.1",
        timeout_s: float = DEFAULT_DIAL_TIMEOUT_S,
    ) -> AsyncIterator[Forward]:
        """A port of this machine (any free one by default) that leads to a port of the sandbox, while the block runs.

        Each connection is made within `timeout_s`, or closed. At most 256 at a time.
        """
        self._fence.check()
        dial = self._dialler(port, address)
        async with forward(dial, port, local_port, local_address, timeout_s) as there:
            yield there

    async def log_to(self, path: FilePath) -> None:
        """Append each later `run`, `start` and session line of this box (not of its forks) to a local text file.

        Of each output at most 64 KiB, of all 64 MiB. It holds commands and output, and what secrets those have, but no
        environment. Raises InvalidRequest if the file cannot be written.
        """
        from dutyfree.client.action_log import ActionLog

        title = f"lease {self.lease.id}, sandbox {self.id}"
        self._log = await ActionLog.open(path_text("path", path), title)

    async def log(self, line: str) -> None:
        """Add a line of your own to the log of `log_to`. Does nothing without one."""
        if text("line", line) and self._log is not None:
            await self._log.remark(line)

    @property
    def paused(self) -> bool:
        """Whether the sandbox is paused."""
        return self._sandbox.paused

    async def pause(self) -> None:
        """Stop every process of the sandbox until `resume`. Idempotent. The lease goes on, and can expire meanwhile.

        What is under way goes on after `resume`; the pause does not count towards timeouts. New calls raise
        SandboxPaused meanwhile, but for `reset`, which ends the pause, and for what ends the lease. Raises Unsupported
        if the substrate cannot pause, and CapacityError if a process cannot be stopped.
        """
        async with self._fence:
            await self._sandbox.pause()

    async def resume(self) -> None:
        """Let every process of a paused sandbox go on. Idempotent."""
        async with self._fence:
            await self._sandbox.resume()

    async def metrics(self) -> Metrics:
        """What the sandbox uses now, at its peak, and may use; None for what is not measured here."""
        async with self._fence:
            return await self._sandbox.metrics()

    async def set_env(self, changes: Mapping[str, str | Secret | None]) -> None:
        """Change the lease's environment for all later actions, also through other boxes of the lease and its forks.

        None removes an entry. A `Secret`, and any value for a name that is secret already, is masked like the lease's
        other secrets. All changes are made, or none. Sessions and commands that run keep the environment they have;
        `reset` brings back that of the beginning of the lease. Raises InvalidRequest, with the limits of leases.
        """
        self._fence.check()
        self._grant.change_env(table("changes", changes))

    async def set_labels(self, labels: Mapping[str, str]) -> None:
        """Replace the labels of the lease. Raises LeaseLost if it has ended, InvalidRequest past the limits."""
        self._keeper.set_labels(self._grant, check_labels(table("labels", labels)))

    async def reset(self) -> None:
        """Restore the sandbox to its state at the beginning of the lease. All later changes and processes are gone.

        Calls in progress raise SandboxReset, and open sessions end. A reset that fails destroys the sandbox. Raises
        Unsupported if the substrate has no reset.
        """
        with self._fence:
            await self._sandbox.reset()
            await bind_again(self._sandbox, self._binding, self._grant, self._restore)
            if not self._is_fork:
                self._grant.restore_env()

    async def snapshot(self) -> Snapshot:
        """Take a snapshot of the files; the sandbox goes on. `host.lease(snapshot.image)` starts from the snapshot.

        Processes are not part of it. Raises Unsupported if the substrate has no snapshots, and CapacityError.
        """
        with self._fence:
            self._grant.check_sealed()
            return await self._sandbox.snapshot()

    async def save_cache(self, name: str) -> SavedCache:
        """Publish what the sandbox has added to the lease's cache of this name, for sandboxes that are made later.

        The new version has the files of the present one, also those that others have saved meanwhile, and over them
        the files, links and directories of this sandbox. Deletions are not part of it. Whoever can write in the sandbox
        decides what later sandboxes find: save before code runs that they must not trust. Raises InvalidRequest for a
        cache that the lease does not have, CapacityError past the cache's `max_bytes` or when the disk is full.
        """
        with self._fence:
            return await self._sandbox.save_cache(text("name", name))

    async def fork(self, count: int) -> list[Box]:
        """Make `count` further sandboxes with the present files of this one, without its processes.

        They live until this sandbox's lease ends, unless they are destroyed before. Either all of them are made or
        none. In a pool they count against its limits. Raises Unsupported if the substrate has no forks, and
        CapacityError.
        """
        count = whole("count", count, least=1)
        with self._fence:
            self._grant.check_sealed()
            await self._keeper.reserve_forks(self._grant, count)
            try:
                forks = await self._sandbox.fork(count)
                await bind_forks(forks, self._binding, self._grant, self._sandbox)
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
        await self._destroy_with(forks)

    async def _destroy_with(self, forks: Sequence[Box | Sandbox]) -> None:
        was_counted = self._is_fork and self._sandbox.alive
        error = await destroy_all(self._sandbox, forks, self._grant)
        if was_counted:
            self._keeper.forks_ended(self._grant, 1)
        elif not self._is_fork and forks:
            self._keeper.forks_ended(self._grant, len(forks))
        if error is not None:
            raise error

    def _dialler(self, port: int, address: str) -> Callable[[float], Awaitable[Connection]]:
        return lambda timeout_s: self.dial(port, address=address, timeout_s=timeout_s)

    def _action(
        self,
        command: Command,
        timeout_s: float,
        cwd: FilePath | None,
        env: Mapping[str, str] | None,
        stdin: bytes | str | None,
        output_limit_bytes: int,
        user: User | None,
        merge: bool,
    ) -> Action:
        return Action(
            command,
            cwd=self._workdir if cwd is None else path_or_none("cwd", cwd),
            env=self._under(env),
            stdin=None if stdin is None else data_bytes("stdin", stdin),
            timeout_s=timeout_s,
            output_limit_bytes=output_limit_bytes,
            user=self._user if user is None else user,
            merge=merge,
        )

    def _under(self, env: Mapping[str, str] | None) -> Mapping[str, str]:
        """The lease's environment, with an action's own over it."""
        return self._grant.env if env is None else self._grant.env.under(table("env", env))

    async def _open_session(self, cwd: FilePath | None, env: Mapping[str, str] | None, user: User | None) -> Session:
        user = self._user if user is None else user
        place = self._workdir if cwd is None else path_or_none("cwd", cwd)
        wanted = Action(":", cwd=place, env=self._under(env), user=user)
        return await self._sandbox.session(cwd=wanted.cwd, env=wanted.env, user=user)

    def _fenced_session(self, inner: Session) -> Session:
        session = GuardedSession(inner, self._fence)
        return session if self._log is None else self._log.session(session)

    def _fenced(self, sandbox: Sandbox) -> GuardedFiles:
        """The files of a sandbox of this lease, with the rights of the lease's user."""
        return GuardedFiles(sandbox.files if self._user is None else sandbox.files.as_user(self._user), self._fence)

    def _forked(self, sandbox: Sandbox) -> Box:
        box = Box(self._grant, self._keeper)
        box._sandbox = sandbox
        box._binding = self._binding.of_forks()
        box._restore = None
        box._is_fork = True
        box._files = self._fenced(sandbox)
        return box


def inside(box: Box) -> tuple[Grant, Sandbox]:
    """The grant of a box, and its sandbox without the fence: for a server, whose clients do what a box does."""
    return box._grant, box._sandbox


async def destroy_alone(box: Box) -> None:
    """Destroy the sandbox of a box and none of its forks: for a server, whose clients may use them as sandboxes."""
    if not box._fence.gone:
        await box._destroy_with(())
