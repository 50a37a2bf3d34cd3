"""Boxes of a node: the client's `Box`, whose actions go through the node, and whose lease is kept there."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from types import MappingProxyType, TracebackType
from typing import Any, cast

from dutyfree.background.sessions import check_name
from dutyfree.checked import FilePath, path_or_none, path_text, seconds, table, whole, wrong
from dutyfree.checked import text as text_given
from dutyfree.client.box import Box
from dutyfree.client.egress import BoxEgress
from dutyfree.client.process import Process, terminal_size
from dutyfree.codec.values import natural, sequence, text
from dutyfree.contract import Session, SpanListener
from dutyfree.errors import InvalidRequest, LeaseLost
from dutyfree.leases.binding import MaskedEnvironment
from dutyfree.leases.fence import Fence
from dutyfree.leases.secret import Secret
from dutyfree.leases.table import Lease, check_labels
from dutyfree.model import (
    DEFAULT_KEEP_OUTPUT_BYTES,
    Action,
    Command,
    Egress,
    EgressRecord,
    Phase,
    ProcessInfo,
    Span,
    Timing,
    User,
)
from dutyfree.model.action import MAX_TIMEOUT_S
from dutyfree.model.environment import CheckedEnvironment
from dutyfree.model.user import check_user
from dutyfree.pool.billing import Spent
from dutyfree.protocol.forms import BOX_STATE, EGRESS, EGRESS_RECORD, LEASE, PROCESS, BoxState, write_ttl
from dutyfree.remote.connection import NodeConnection
from dutyfree.remote.process import RemoteKeptSession, RemoteProcess
from dutyfree.remote.sandbox import RemoteSandbox
from dutyfree.tables import Table


class RemoteFence(Fence):
    """It learns from the node that the lease has ended."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if isinstance(error, LeaseLost):
            self.end()


class LeaseSpans:
    """Takes the spans of one lease: adds them up, and passes them on."""

    def __init__(self, on_span: SpanListener | None) -> None:
        self.spent = Spent()
        self._on_span = on_span

    def __call__(self, span: Span) -> None:
        if span.phase is Phase.EXECUTE:
            self.spent.work_ns += span.end_ns - span.start_ns
        else:
            self.spent.tax_ns += span.end_ns - span.start_ns
        if self._on_span is not None:
            self._on_span(span)

    def on_timing(self, timing: Timing) -> None:
        """The three spans of an action, which need not be made if there is no listener."""
        self.spent.work_ns += timing.execute_ns
        self.spent.tax_ns += timing.end_ns - timing.start_ns - timing.execute_ns
        if self._on_span is not None:
            for span in timing.spans():
                self._on_span(span)


class RemoteGrant:
    """What a `Box` needs of its lease, where the lease is kept by a node."""

    def __init__(
        self, lease: Lease, sandbox: RemoteSandbox, state: BoxState, uploads: Mapping[str, Any], spent: Spent
    ) -> None:
        self.lease = lease
        self.sandbox = sandbox
        self.spent = spent
        self.fence = RemoteFence(lease.id)
        self.state = state
        self.uploads = uploads
        self.env = CheckedEnvironment({})
        """What is added to each action here: nothing. The node adds the lease's own."""
        self.restore = None
        self.egress = None

    @property
    def lasts(self) -> bool:
        """Whether neither the lease nor the sandbox has ended, as far as this client knows."""
        return not self.fence.gone and self.sandbox.alive

    def update(self, answer: Table) -> None:
        """Take over what the node says of the lease now."""
        self.lease = answer.required("lease", LEASE.decode_inner)
        self.state = answer.required("state", BOX_STATE.decode_inner)
        self.sandbox.paused = self.state.paused

    def check_sealed(self) -> None:
        """The node refuses snapshots that would contain secrets."""

    @property
    def binding(self) -> BoxState:
        """The lease's user and working directory."""
        return self.state


class RemoteBox(Box):
    """One sandbox of a node, yours until the lease ends."""

    def __init__(self, connection: NodeConnection, grant: RemoteGrant) -> None:
        super().__init__(cast(Any, grant), cast(Any, None))
        self._connection = connection
        self._remote = grant
        self._inside = grant.sandbox

    @property
    def env(self) -> Mapping[str, str]:
        """The lease's environment, as of the last answer of the node; the values of secrets are masked."""
        state = self._remote.state
        return MappingProxyType(MaskedEnvironment(state.env, state.secret))

    @property
    def egress(self) -> BoxEgress:
        if self._remote.state.egress is None:
            raise InvalidRequest("this lease has no egress by name", hint="lease with network=Egress(allow=[...])")
        return RemoteEgress(self, self._remote.state.egress)

    async def _call(self, op: str, **arguments: Any) -> tuple[Table, bytes]:
        async with self._fence:
            return await self._inside.call(op, **arguments)

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
        if not isinstance(stdin, bool):
            raise wrong(
                "stdin", stdin, "True or False", hint="`Process.write` gives input to a process with stdin=True"
            )
        size = None if terminal is None else terminal_size(terminal)
        wait_s = reader_wait_s and seconds("reader_wait_s", reader_wait_s, most_s=MAX_TIMEOUT_S)
        # Checked here as for every box, so that a wrong value names its argument.
        action = self._action(command, 1.0 if timeout_s is None else timeout_s, cwd, env, None, 0, user, merge)
        answer, _ = await self._call(
            "process.start",
            command=action.command if isinstance(action.command, str) else list(action.command),
            cwd=action.cwd,
            env=dict(action.env),
            stdin=stdin,
            timeout_s=timeout_s,
            keep_output_bytes=whole("keep_output_bytes", keep_output_bytes, least=1),
            user=action.user,
            merge=merge,
            terminal=None if size is None else list(size),
            reader_wait_s=wait_s,
        )
        info = answer.required("process", PROCESS.decode_inner)
        if self._log is not None:
            await self._log.started(action.command, f"runs in the background as {info.id}")
        return self._process(info.id, info)

    async def processes(self) -> list[ProcessInfo]:
        answer, _ = await self._call("process.list")
        return list(answer.required("processes", sequence(PROCESS.decode_inner)))

    async def start_watch(
        self,
        path: FilePath,
        *,
        recursive: bool = False,
        keep_output_bytes: int = DEFAULT_KEEP_OUTPUT_BYTES,
        user: User | None = None,
    ) -> Process:
        if user is not None:
            check_user(user)
        answer, _ = await self._call(
            "process.watch",
            path=path_text("path", path),
            recursive=recursive,
            keep_output_bytes=whole("keep_output_bytes", keep_output_bytes, least=1),
            user=user,
        )
        info = answer.required("process", PROCESS.decode_inner)
        return self._process(info.id, info)

    def process(self, process_id: str) -> Process:
        """A background process by its id. The node is not asked: the first call on it raises if there is none."""
        self._fence.check()
        if not isinstance(process_id, str):
            raise wrong("the id of a process", process_id, "text")
        return self._process(process_id, None)

    def _process(self, process_id: str, info: ProcessInfo | None) -> Process:
        inner = RemoteProcess(self._inside, process_id, info)
        return Process(cast(Any, inner), self._fence)

    async def keep_session(
        self,
        name: str,
        *,
        cwd: FilePath | None = None,
        env: Mapping[str, str] | None = None,
        user: User | None = None,
    ) -> Session:
        # Checked here as for every box, so that a wrong value names its argument.
        wanted = Action(":", cwd=path_or_none("cwd", cwd), env=self._under(env), user=user)
        arguments = {"cwd": wanted.cwd, "env": dict(wanted.env), "user": wanted.user}
        await self._call("session.keep", name=check_name(name), **arguments)
        return self._kept(name)

    async def kept_session(self, name: str) -> Session:
        await self._call("session.check", name=check_name(name))
        return self._kept(name)

    def _kept(self, name: str) -> Session:
        return self._fenced_session(RemoteKeptSession(self._inside, name))

    async def pause(self) -> None:
        async with self._fence:
            await self._inside.pause()

    async def set_env(self, changes: Mapping[str, str | Secret | None]) -> None:
        for name in table("changes", changes):
            text_given("the name of a variable", name)
        env = {name: value for name, value in changes.items() if not isinstance(value, Secret)}
        secrets = {name: value.reveal() for name, value in changes.items() if isinstance(value, Secret)}
        answer, _ = await self._call("box.env", env=env, secrets=secrets)
        self._remote.state = answer.required("state", BOX_STATE.decode_inner)

    async def set_labels(self, labels: Mapping[str, str]) -> None:
        answer, _ = await self._call("box.labels", labels=dict(check_labels(table("labels", labels))))
        self._remote.lease = answer.required("lease", LEASE.decode_inner)

    async def renew(self, ttl_s: float | None = None) -> None:
        answer, _ = await self._call("box.renew", **write_ttl(ttl_s))
        self._remote.lease = answer.required("lease", LEASE.decode_inner)

    async def reset(self) -> None:
        async with self._fence:
            await self._inside.reset()
            if not self._is_fork:
                answer, _ = await self._inside.call("box.state")
                self._remote.state = answer.required("state", BOX_STATE.decode_inner)
                await self.upload_all(self._remote.uploads)

    async def upload_all(self, uploads: Mapping[str, str | PathLike[str]]) -> None:
        """Stream files of this machine in; what the node cannot do."""
        for path, local in uploads.items():
            await self._inside.files.upload(local, path)

    async def fork(self, count: int) -> list[Box]:
        count = whole("count", count, least=1)
        async with self._fence:
            forks = await self._inside.fork(count)
        boxes: list[Box] = []
        for fork in forks:
            assert isinstance(fork, RemoteSandbox)
            boxes.append(self._of_fork(fork))
        self._forks += boxes
        return boxes

    def _of_fork(self, sandbox: RemoteSandbox) -> RemoteBox:
        box = RemoteBox(self._connection, self._remote)
        box._sandbox = box._inside = sandbox
        box._is_fork = True
        box._files = box._fenced(sandbox)
        return box

    async def close(self) -> None:
        if self._is_fork:
            await self.destroy()
            return
        if self._fence.gone:
            return
        self._fence.end("was released")
        await self._fence.drained(0.0)
        try:
            await self._connection.call("release", lease=self.lease.id)
        except LeaseLost:
            pass  # it has expired
        finally:
            self._inside.let_go()
            for fork in self._forks:
                if isinstance(fork, RemoteBox):
                    fork._inside.let_go()

    async def destroy(self) -> None:
        if self._fence.gone:
            return
        forks, self._forks = self._forks, []
        for fork in forks:
            if isinstance(fork, RemoteBox):
                fork._inside.let_go()
        await self._inside.destroy()


class RemoteEgress(BoxEgress):
    """The egress of a box of a node. `journal` has what the last `refresh` has brought."""

    def __init__(self, box: RemoteBox, rules: Egress) -> None:
        self._box = box
        self._rules = rules
        self._notes: tuple[str, ...] = ()
        self._dropped = 0
        self._journal: tuple[EgressRecord, ...] = ()

    @property
    def rules(self) -> Egress:
        return self._rules

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    @property
    def dropped(self) -> int:
        return self._dropped

    def journal(self) -> list[EgressRecord]:
        return list(self._journal)

    async def refresh(self) -> None:
        """Ask the node for the journal."""
        answer, _ = await self._box._call("egress.journal")
        self._rules = answer.required("rules", EGRESS.decode_inner)
        self._notes = answer.required("notes", sequence(text))
        self._dropped = answer.required("dropped", natural)
        self._journal = answer.required("records", sequence(EGRESS_RECORD.decode_inner))

    async def set(self, egress: Egress) -> None:
        await self._box._call("egress.set", egress=EGRESS.write(egress))
        self._rules = egress
