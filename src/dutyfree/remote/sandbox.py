"""A sandbox of a node: its guest is spoken to through the node, and the rest is calls."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dutyfree.checked import whole
from dutyfree.codec import IMAGE
from dutyfree.codec.values import sequence, text
from dutyfree.contract import Sandbox, Snapshot, SpanListener
from dutyfree.errors import DutyfreeError, InfraFailed, InvalidRequest, LeaseLost, SandboxGone
from dutyfree.guest.environment import Environment
from dutyfree.guest.sandbox import GuestSandbox
from dutyfree.model import Image, Metrics, Phase, SavedCache, Span
from dutyfree.protocol.forms import BOX_FACTS, METRICS, SAVED_CACHE, BoxFacts
from dutyfree.remote.channel import RemoteChannel
from dutyfree.remote.connection import NodeConnection
from dutyfree.tables import Table

LIFECYCLE_S = 660.0
"""The time limit of a reset, a snapshot or a fork: the node has one of its own."""


def release_late(connection: NodeConnection, answer: Any) -> None:
    """End a lease that nobody waits for any more: its `acquire` was given up."""
    with suppress(InvalidRequest):
        connection.tell("release", lease=Table(answer, "the answer to acquire").under("lease").required("id", text))


class OwnEntries(Environment):
    """What an action itself adds: the node adds the rest, which may be secret."""

    def terminal_entries(self, addition: Mapping[str, str]) -> tuple[bytes, ...]:
        """As `entries`: the node knows that it is a terminal."""
        return self.entries(addition)


class RemoteSandbox(GuestSandbox):
    """One sandbox, under the number that the node gave it for this client."""

    def __init__(self, connection: NodeConnection, facts: BoxFacts, on_span: SpanListener | None) -> None:
        super().__init__(
            facts.sandbox,
            RemoteChannel(connection, facts.box),
            destroy=self._destroy_there,
            env={},
            cwd=facts.cwd,
            unenforced=facts.unenforced,
            on_span=on_span,
            refusal_hint=facts.refusal_hint,
            one_user=facts.one_user,
            ports=facts.has_ports,
        )
        self._runner.environment = OwnEntries({})
        self._connection = connection
        self._life = connection.life
        self._box = facts.box
        self._on_span = on_span
        self._is_paused = False

    @property
    def paused(self) -> bool:
        return self._is_paused

    @paused.setter
    def paused(self, is_paused: bool) -> None:
        self._is_paused = is_paused
        self._runner.channel.standing_still = self._runner.channel.refuses = is_paused

    async def pause(self) -> None:
        self._check()
        await self.call("box.pause", settle=self._end_if_gone)
        self.paused = True

    async def resume(self) -> None:
        self._check()
        await self.call("box.resume", settle=self._end_if_gone)
        self.paused = False

    async def reset(self) -> None:
        self._check()
        start_ns = time.monotonic_ns()
        try:
            await self.call("box.reset", limit_s=LIFECYCLE_S, settle=self._end_after)
        except DutyfreeError as error:
            self._end_after(error)
            raise
        self.paused = False
        self._report(Phase.RESET, start_ns)

    async def snapshot(self) -> Snapshot:
        self._check()
        start_ns = time.monotonic_ns()
        answer, _ = await self.call(
            "box.snapshot", limit_s=LIFECYCLE_S, undo=self._discard_late, settle=self._end_if_gone
        )
        self._report(Phase.SNAPSHOT, start_ns)
        image = answer.required("image", IMAGE.decode_inner)
        return RemoteSnapshot(self._connection, answer.required("owner", text), image)

    async def fork(self, count: int) -> list[Sandbox]:
        self._check()
        whole("count", count, least=1)
        start_ns = time.monotonic_ns()
        answer, _ = await self.call(
            "box.fork", count=count, limit_s=LIFECYCLE_S, undo=self._destroy_late, settle=self._end_if_gone
        )
        self._report(Phase.FORK, start_ns)
        forks = answer.required("forks", sequence(BOX_FACTS.decode_inner))
        return [self._forked(facts) for facts in forks]

    def _forked(self, facts: BoxFacts) -> RemoteSandbox:
        return RemoteSandbox(self._connection, facts, self._on_span)

    async def metrics(self) -> Metrics:
        self._check()
        answer, _ = await self.call("box.metrics")
        return answer.required("metrics", METRICS.decode_inner)

    async def save_cache(self, name: str) -> SavedCache:
        self._check()
        answer, _ = await self._connection.call("box.save_cache", box=self._box, name=name, limit_s=LIFECYCLE_S)
        return answer.required("saved", SAVED_CACHE.decode_inner)

    async def _destroy_there(self) -> None:
        try:
            await self.call("box.destroy")
            self.tell("detach")
        except (SandboxGone, LeaseLost):
            pass  # it is gone

    async def call(self, op: str, **arguments: Any) -> tuple[Table, bytes]:
        """A call of the node about this sandbox. Raises SandboxGone if its node is lost."""
        if self._life != self._connection.life:
            raise SandboxGone(f"sandbox {self.id} is gone: it was lost with its server")
        try:
            return await self._connection.call(op, box=self._box, **arguments)
        except SandboxGone as error:
            self._runner.channel.fail(error)
            raise

    def tell(self, op: str, **arguments: Any) -> None:
        """A call about this sandbox whose answer nobody waits for."""
        if self._life == self._connection.life:
            self._connection.tell(op, box=self._box, **arguments)

    def let_go(self) -> None:
        """Its lease has ended: nothing more is expected of it."""
        self._runner.channel.fail(LeaseLost(f"the lease of sandbox {self.id} has ended"))

    def _end_after(self, error: DutyfreeError) -> None:
        """A reset that failed has destroyed the sandbox; one that was cancelled may not even have begun."""
        if self.alive and not isinstance(error, LeaseLost):
            self._runner.channel.fail(error)
            self.tell("box.destroy", alone=True)

    def _end_if_gone(self, error: DutyfreeError) -> None:
        """A snapshot or fork that was cancelled may have destroyed the sandbox."""
        if isinstance(error, SandboxGone | InfraFailed):
            self._runner.channel.fail(error)

    def _discard_late(self, answer: Any) -> None:
        table = Table(answer, "the answer to box.snapshot")
        with suppress(InvalidRequest):
            image = table.required("image", IMAGE.decode_inner)
            self._connection.tell("snapshot.discard", owner=table.required("owner", text), snapshot=image.reference)

    def _destroy_late(self, answer: Any) -> None:
        with suppress(InvalidRequest):
            for facts in Table(answer, "the answer to box.fork").required("forks", sequence(BOX_FACTS.decode_inner)):
                self._connection.tell("box.destroy", box=facts.box)

    def _check(self) -> None:
        if not self.alive:
            raise SandboxGone(f"sandbox {self.id} is gone")

    def _report(self, phase: Phase, start_ns: int) -> None:
        if self._on_span is not None:
            self._on_span(Span(phase, start_ns, time.monotonic_ns(), self.id))


class RemoteSnapshot(Snapshot):
    """A snapshot on the node, until it is discarded or the node ends. Its image can be leased there, by its owner."""

    def __init__(self, connection: NodeConnection, owner: str, image: Image) -> None:
        self._connection = connection
        self._owner = owner
        self._taken = image
        self._saved: Image | None = None

    @property
    def id(self) -> str:
        return self._taken.reference

    @property
    def image(self) -> Image:
        return self._taken if self._saved is None else self._saved

    async def save(self) -> Image:
        if self._saved is None:
            answer, _ = await self._call("save", limit_s=LIFECYCLE_S)
            self._saved = answer.required("image", IMAGE.decode_inner)
        return self._saved

    async def discard(self) -> None:
        await self._call("discard")

    async def _call(self, op: str, **arguments: Any) -> tuple[Table, bytes]:
        return await self._connection.call(f"snapshot.{op}", owner=self._owner, snapshot=self.id, **arguments)
