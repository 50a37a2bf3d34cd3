"""One cell as its owner sees it: a sandbox that outlives the cells it is made of.

Reset and snapshot put another cell in the place of the old one, under the same sandbox.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dutyfree.contract import Sandbox, Snapshot, SpanListener
from dutyfree.errors import InfraFailed, SandboxGone, SubstrateFailed
from dutyfree.guest import DEFAULT_ENVIRONMENT, LimitCounters
from dutyfree.model import Network, Phase, SandboxSpec, Unenforced
from dutyfree.substrates.cell import purity
from dutyfree.substrates.cell.chain import Chain
from dutyfree.substrates.cell.frozen import FrozenLayer
from dutyfree.substrates.cell.ids import IdRange
from dutyfree.substrates.cell.purity import Condition
from dutyfree.substrates.cell.snapshot import CellSnapshot
from dutyfree.substrates.cell.spawner import Birth, Spawner
from dutyfree.substrates.cell.standstill import children, standstill
from dutyfree.substrates.forking import check_count
from dutyfree.substrates.hierarchies import GroupCounters
from dutyfree.substrates.replaceable import ReplaceableSandbox, was_reset
from dutyfree.wire.channel import Channel

if TYPE_CHECKING:
    from dutyfree.substrates.cell.substrate import CellSubstrate

REPLACED_CELL_S = 30.0
"""How long a reset or a snapshot waits for the end of a cell. A destruction has no deadline here: the guard sets it."""
MAX_FORKS = 4096
FORKS_AT_ONCE = 8
MAX_LIVE_LAYERS = 8
"""Snapshots of snapshots: before their chain gets longer than this, it is made one layer."""

OVER_HOST_HINT = (
    "it belongs to this machine, whose files the sandbox starts from; start from an image with a base of its own"
    " (`dutyfree image --help`), in which root owns all files"
)


class Cell:
    """The host's record of one cell: what watches its limits and what ends it."""

    def __init__(self, spawner: Spawner, birth: Birth, counters: GroupCounters, chain: Chain, ids: IdRange) -> None:
        self._spawner = spawner
        self._counters = counters
        self.birth = birth
        self.chain = chain
        self.ids = ids
        self.pid = 0
        self.spawned_ns = 0

    @property
    def spawner_pid(self) -> int:
        """The parent of its first process; 0 once that has ended."""
        return self._spawner.pid or 0

    def counters(self) -> LimitCounters:
        """What the cell's cgroups have counted so far."""
        return self._counters.counters()

    def kill(self) -> None:
        """Begin its end."""
        self._spawner.kill(self.birth)

    async def die(self) -> None:
        """Wait until no process of it runs any more, after `kill`. Raises SubstrateFailed."""
        await self._wait_for(self.birth.dead, REPLACED_CELL_S)

    async def end(self, within_s: float | None = REPLACED_CELL_S) -> None:
        """Kill the cell and wait until nothing of it is left. Raises SubstrateFailed."""
        self.kill()
        await self._wait_for(self.birth.gone, within_s)

    async def _wait_for(self, event: asyncio.Future[Any], within_s: float | None) -> None:
        if event.done():
            return
        try:
            async with asyncio.timeout(within_s):
                await asyncio.shield(event)
        except TimeoutError:
            raise SubstrateFailed(f"cell {self.birth.number} did not end within {within_s:g} s") from None


class CellSandbox(ReplaceableSandbox):
    """A sandbox whose guest is a process of this machine."""

    def __init__(
        self,
        substrate: CellSubstrate,
        cell: Cell,
        channel: Channel,
        spec: SandboxSpec,
        fresh: Condition,
        unenforced: tuple[Unenforced, ...],
        on_span: SpanListener | None,
    ) -> None:
        super().__init__(
            f"cell-{os.getpid()}-{cell.birth.number}", channel, destroy=self._end, limits=cell, on_span=on_span,
            env={**DEFAULT_ENVIRONMENT, **spec.image.env, **spec.env}, cwd=spec.image.cwd, unenforced=unenforced,
            refusal_hint=OVER_HOST_HINT if spec.image.over_host else None,
        )  # fmt: skip
        self._substrate = substrate
        self._cell = cell
        self._origin = cell.chain
        """What `reset` goes back to."""
        self._spec = spec
        self._fresh = fresh
        self._buried: list[Cell] = []
        """Cells before this one, which may still be on their way out."""

    @property
    def pid(self) -> int:
        """The guest's process id on the host."""
        return self._cell.pid

    async def _replace(self) -> None:
        """Another cell from the same origin takes the old one's place, which is killed and given back meanwhile.

        Only then: two cells of different namespaces do not meet, and a birth beside a death takes a third longer.
        """
        await self._bury(REPLACED_CELL_S)  # never more than one cell too many
        leaving, old = self._runner.channel, self._cell
        channel, theirs = self._substrate.stream()
        cell = await self._substrate.spawn(self._spec, self._origin, channel, theirs)
        try:
            wrong = purity.differences(self._substrate.condition(self._spec, cell), self._fresh)
            if wrong:
                raise SubstrateFailed(f"the sandbox was not clean after its reset: {'; '.join(wrong)}")
            self._check()
        except BaseException:
            channel.close()
            await asyncio.shield(cell.end())
            raise
        self._cell = cell
        self._buried.append(old)
        self._runner.move_to(channel, cell)
        leaving.fail(was_reset())
        old.kill()
        self._leave(old)
        if self._spec.network is not Network.NONE:
            await old.die()  # its ports are those of the host

    async def _bury(self, within_s: float | None) -> None:
        """Wait until nothing is left of the cells before this one."""
        for cell in self._buried:
            await cell.end(within_s)
        self._buried.clear()

    def _leave(self, cell: Cell) -> None:
        if cell.chain is not self._origin:
            self._substrate.chains.release(cell.chain)

    async def snapshot(self) -> Snapshot:
        async with self._turn:
            return CellSnapshot(self._substrate, await self._frozen())

    async def fork(self, count: int) -> list[Sandbox]:
        check_count(count, MAX_FORKS)
        async with self._turn:
            chain = await self._frozen()
        spec = replace(self._spec, image=chain.image)
        try:
            return await self._multiplied(
                lambda: self._substrate.create(spec, self._runner.on_span), count, FORKS_AT_ONCE
            )
        finally:
            self._substrate.chains.release(chain)

    async def _frozen(self) -> Chain:
        """A chain of the files as they are now, to be released by the caller."""
        self._check()
        start_ns = time.monotonic_ns()
        below = await self._below()
        try:
            chain = await self._freeze(below)
        finally:
            for layer in below:
                self._substrate.frozen.release(layer)
        self._report(Phase.SNAPSHOT, start_ns)
        return chain

    async def _below(self) -> list[FrozenLayer]:
        """The live layers that the cell stands on, in one if there are many of them by now. They do not change."""
        frozen, layers = self._substrate.frozen, self._cell.chain.frozen
        if len(layers) < MAX_LIVE_LAYERS:
            return [frozen.find(layer.name) for layer in layers]
        return [await frozen.copy(layers, self._substrate.next_number())]

    async def _freeze(self, below: list[FrozenLayer]) -> Chain:
        substrate = self._substrate
        shared_disk = substrate.shared_upper(self._spec, self._cell) is not None
        written = await substrate.frozen.show(self._cell.birth, substrate.next_number(), shared_disk=shared_disk)
        try:
            self._check()
            if self._is_idle():
                return await self._move(below, written)
            shown, written = written, await self._copied(written)
            substrate.frozen.release(shown)
            return await substrate.chains.over(self._cell.chain, [*below, written])
        finally:
            substrate.frozen.release(written)

    def _is_idle(self) -> bool:
        """Whether nobody would notice if the cell were replaced by one with the same files.

        On the host's network a cell can give an open file to another one, which could write on.
        """
        if self._spec.network is not Network.NONE or not self._runner.channel.idle or children(self.pid):
            return False
        try:
            with os.scandir(f"/proc/{self.pid}/root/dev/shm") as shared:
                return next(shared, None) is None
        except OSError:
            return False

    async def _copied(self, shown: FrozenLayer) -> FrozenLayer:
        """Something runs in the cell: while it stands still, what it wrote is copied."""
        substrate, channel = self._substrate, self._runner.channel
        channel.standing_still = True
        try:
            async with standstill(self.pid, self._cell.spawner_pid, substrate.freezer(self._cell)):
                copied = await substrate.frozen.copy([shown], substrate.next_number())
        finally:
            channel.standing_still = False
        if not self.alive:  # what was copied may be what its destruction had left
            substrate.frozen.release(copied)
            raise SandboxGone(f"sandbox {self.id} is gone")
        return copied

    async def _move(self, below: list[FrozenLayer], written: FrozenLayer) -> Chain:
        """Give up the cell: what it wrote becomes a layer as it is, and the sandbox goes on in a new cell over it.

        New actions go to the new cell's stream at once, and wait there until it is up.
        """
        leaving = self._runner.channel
        channel, theirs = self._substrate.stream()
        self._runner.move_to(channel, None)
        try:
            await self._go_on([*below, written], channel, theirs)
        except BaseException as error:
            theirs.close()
            self._end_calls(error if isinstance(error, InfraFailed) else SubstrateFailed("a snapshot was cut short"))
            raise
        finally:
            leaving.close()
        return await self._substrate.chains.resolve(self._cell.chain.image)

    async def _go_on(self, layers: list[FrozenLayer], channel: Channel, theirs: socket.socket) -> None:
        substrate, old = self._substrate, self._cell
        old.kill()
        await old.die()
        substrate.frozen.settle(layers[-1])
        chain = await substrate.chains.over(old.chain, layers)
        try:
            cell = await substrate.spawn(self._spec, chain, channel, theirs)
        except BaseException:
            substrate.chains.release(chain)
            raise
        if self._ended:  # destroyed meanwhile, without this cell
            await asyncio.shield(cell.end())
            substrate.chains.release(chain)
            raise SandboxGone(f"sandbox {self.id} is gone")
        self._leave(old)
        self._cell = cell
        self._buried = [each for each in (*self._buried, old) if not each.birth.gone.done()]
        self._runner.move_to(channel, cell)

    async def _end(self) -> None:
        self._ended = True
        await self._cell.end(within_s=None)
        await self._bury(within_s=None)
        self._substrate.forget(self)
        self._leave(self._cell)
        self._substrate.chains.release(self._origin)
