"""A sandbox made of cells: reset and snapshot replace its cell by a new one, and the sandbox stays the same."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dutyfree.contract import Sandbox, Snapshot, SpanListener
from dutyfree.errors import InfraFailed, SandboxGone, SubstrateFailed
from dutyfree.failure import on_failure
from dutyfree.guest import DEFAULT_ENVIRONMENT, LimitCounters
from dutyfree.model import (
    Cache,
    Capability,
    Metrics,
    Network,
    Phase,
    SandboxSpec,
    SavedCache,
    Unenforced,
    Usage,
    Writes,
)
from dutyfree.substrates.cell import purity
from dutyfree.substrates.cell.caches import find_cache, written
from dutyfree.substrates.cell.chain import Chain
from dutyfree.substrates.cell.freezer import Freezer
from dutyfree.substrates.cell.frozen import FrozenLayer
from dutyfree.substrates.cell.ids import IdRange
from dutyfree.substrates.cell.kinds import CellKind
from dutyfree.substrates.cell.purity import Condition
from dutyfree.substrates.cell.spawner import CellHandle, Spawner
from dutyfree.substrates.cell.standstill import children, standstill
from dutyfree.substrates.forking import check_count
from dutyfree.substrates.hierarchies import GroupCounters
from dutyfree.substrates.replaceable import ReplaceableSandbox, was_reset
from dutyfree.threads import exit_in_thread, in_thread, in_thread_stoppable
from dutyfree.wire.channel import Channel

if TYPE_CHECKING:
    from dutyfree.substrates.cell.substrate import CellSubstrate

REPLACED_CELL_S = 30.0
"""How long a reset or a snapshot waits for the end of a cell. A destruction has no deadline here: the guard sets it."""
MAX_FORKS = 4096
FORKS_AT_ONCE = 8
MAX_LIVE_LAYERS = 8
"""Repeated snapshots of one sandbox add live layers. Once there are this many, they are copied into one layer."""

ONE_ID = "an ordinary user has only one id for its cells"
OVER_HOST_HINT = (
    "the file belongs to this machine, whose files the sandbox starts from; start from an image with its own base"
    " (`dutyfree image --help`), in which root owns all files"
)


class Cell:
    """The host's record of one cell: reads its limit counters, and ends it."""

    def __init__(
        self,
        spawner: Spawner,
        handle: CellHandle,
        kind: CellKind,
        find_counters: Callable[[], GroupCounters],
        chain: Chain,
        ids: IdRange,
    ) -> None:
        self._spawner = spawner
        self._find_counters = find_counters
        self.handle = handle
        self.kind = kind
        self.chain = chain
        self.ids = ids
        self.freezer: Freezer | None = None
        """Made when the cell is paused for the first time."""

    @property
    def pid(self) -> int:
        """The process id of the cell's first process."""
        return self.handle.pid

    @property
    def spawner_pid(self) -> int:
        """The process id of the spawner, the parent of the cell's first process; 0 once the spawner has ended."""
        return self._spawner.pid or 0

    def counters(self) -> LimitCounters:
        """The current counters of the cell's cgroups."""
        return self._find_counters().counters()

    def memory_bytes(self) -> int | None:
        """The memory that is charged to the cell; None where that is not counted."""
        return self._find_counters().memory_bytes()

    def kill(self, *, reports_death: bool = True) -> None:
        """Start to end the cell; `die` and `end` wait."""
        if self.freezer is not None:
            self.freezer.end()
        self._spawner.kill(self.handle, reports_death=reports_death)

    async def die(self) -> None:
        """Wait until no process of the cell runs any more, after `kill`. Raises SubstrateFailed."""
        await self._wait_for(self.handle.dead, REPLACED_CELL_S)

    async def end(self, within_s: float | None = REPLACED_CELL_S) -> None:
        """Kill the cell and wait until nothing of it is left. Raises SubstrateFailed."""
        self.kill(reports_death=False)
        await self._wait_for(self.handle.gone, within_s)

    async def _wait_for(self, event: asyncio.Event, within_s: float | None) -> None:
        if within_s is None or event.is_set():
            await event.wait()
            return
        try:
            async with asyncio.timeout(within_s):
                await event.wait()
        except TimeoutError:
            raise SubstrateFailed(f"cell {self.handle.number} did not end within {within_s:g} s") from None


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
            f"cell-{os.getpid()}-{cell.handle.number}", channel, destroy=self._end, limits=cell, on_span=on_span,
            env={**DEFAULT_ENVIRONMENT, **spec.image.env, **spec.env}, cwd=spec.image.cwd, unenforced=unenforced,
            refusal_hint=OVER_HOST_HINT if spec.image.over_host else None,
            one_user=None if Capability.USERS in substrate.capabilities else ONE_ID,
            ports=spec.network is not Network.HOST and Capability.DENY_NETWORK not in (gap.what for gap in unenforced),
        )  # fmt: skip
        self._substrate = substrate
        self._cell = cell
        self._origin = cell.chain
        """The chain that `reset` returns to."""
        self._spec = spec
        self._fresh = fresh
        self._old_cells: list[Cell] = []
        """Former cells of this sandbox, which may not have ended yet."""

    @property
    def pid(self) -> int:
        """The guest's process id on the host."""
        return self._cell.pid

    async def _replace(self) -> None:
        """Replace the cell by a new one from the same origin.

        The old cell is killed only after the new one runs: making a cell takes a third longer while another one dies.
        Both may run at once, because cells in different namespaces do not interact.
        """
        await self._end_old_cells(REPLACED_CELL_S)  # so that a sandbox never has more than two cells
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
        self._old_cells.append(old)
        self._runner.move_to(channel, cell)
        leaving.fail(was_reset())
        needs_ports = self._spec.network is not Network.NONE
        old.kill(reports_death=needs_ports)
        self._release_chain_of(old)
        if needs_ports:
            await old.die()  # it uses ports of the host's network, which the new cell may need

    async def _end_old_cells(self, within_s: float | None) -> None:
        """Wait until nothing is left of the former cells."""
        for cell in self._old_cells:
            await cell.end(within_s)
        self._old_cells.clear()

    def _release_chain_of(self, cell: Cell) -> None:
        if cell.chain is not self._origin:
            self._substrate.chains.release(cell.chain)

    def usage(self) -> Usage | None:
        self._check()
        memory_bytes = self._cell.memory_bytes()
        if memory_bytes is None:
            return None
        own_disk = self._spec.writes is Writes.DISK and self._substrate.shared_upper(self._spec, self._cell) is None
        disk_bytes = purity.written_bytes(self.pid) if own_disk else 0
        return Usage(memory_bytes, disk_bytes)

    async def metrics(self) -> Metrics:
        from dutyfree.substrates.metering import measure, with_limits  # and no measurements

        self._check()
        cell, spec = self._cell, self._spec
        own_network = spec.network is Network.NONE
        seen = await in_thread(partial(measure, self.pid, self._substrate.groups(cell), own_network=own_network))
        if self._substrate.shared_upper(spec, cell) is None:
            seen = replace(seen, disk_bytes=purity.written_bytes(self.pid))
        return with_limits(seen, spec.resources, self.unenforced)

    async def _stop(self) -> None:
        cell = self._cell
        if cell.freezer is None:
            cell.freezer = await self._substrate.make_freezer(cell)
        await cell.freezer.freeze()

    async def _go(self) -> None:
        if self._cell.freezer is not None:
            self._cell.freezer.thaw()

    async def snapshot(self) -> Snapshot:
        from dutyfree.substrates.cell.snapshot import CellSnapshot  # most sandboxes have no snapshots

        async with self._turn:
            return CellSnapshot(self._substrate, await self._freeze_files())

    async def save_cache(self, name: str) -> SavedCache:
        from dutyfree.images.caches import merge_changes  # most programs start sandboxes, and make no layers

        store = self._substrate.store
        cache, number = find_cache(self._spec, name)
        async with exit_in_thread(store.staging()) as scratch:
            changes = scratch / "changes"
            start_ns = time.monotonic_ns()
            async with self._turn:
                left_out = await self._copy_cache(cache, number, changes)
            async with self._substrate.merging:
                saved = await in_thread_stoppable(lambda seen: merge_changes(store, cache, changes, left_out, seen))
        self._report(Phase.SNAPSHOT, start_ns)
        return saved

    async def _copy_cache(self, cache: Cache, number: int, changes: Path) -> int:
        """Copy what the cell has written in a cache, while its processes are stopped; returns what was left out."""
        from dutyfree.images.caches import copy_changes

        self._check_running()
        substrate = self._substrate
        shared_disk = substrate.shared_upper(self._spec, self._cell) is not None
        shown = await substrate.frozen.show(self._cell.handle, substrate.next_number(), shared_disk=shared_disk)
        try:
            self._check()
            async with self._standing_still():
                left_out = await in_thread_stoppable(
                    lambda on_bytes: copy_changes(cache, written(shown, number), changes, on_bytes)
                )
        finally:
            substrate.frozen.release(shown)
        self._check()  # the copy may be incomplete if `destroy` removed files meanwhile
        return left_out

    async def fork(self, count: int) -> list[Sandbox]:
        check_count(count, MAX_FORKS)
        async with self._turn:
            chain = await self._freeze_files()
        spec = replace(self._spec, image=chain.image)
        try:
            return await self._multiplied(
                lambda: self._substrate.create(spec, self._runner.on_span), count, FORKS_AT_ONCE
            )
        finally:
            self._substrate.chains.release(chain)

    async def _freeze_files(self) -> Chain:
        """A chain with the current files. The caller must release it."""
        self._check_running()
        start_ns = time.monotonic_ns()
        below = await self._layers_below()
        try:
            chain = await self._freeze(below)
        finally:
            for layer in below:
                self._substrate.frozen.release(layer)
        self._report(Phase.SNAPSHOT, start_ns)
        return chain

    async def _layers_below(self) -> list[FrozenLayer]:
        """The live layers below the cell, copied into one if there are too many. They do not change."""
        frozen, layers = self._substrate.frozen, self._cell.chain.frozen
        if len(layers) < MAX_LIVE_LAYERS:
            return [frozen.find(layer.name) for layer in layers]
        return [await frozen.copy(layers, self._substrate.next_number())]

    async def _freeze(self, below: list[FrozenLayer]) -> Chain:
        substrate = self._substrate
        shared_disk = substrate.shared_upper(self._spec, self._cell) is not None
        written = await substrate.frozen.show(self._cell.handle, substrate.next_number(), shared_disk=shared_disk)
        try:
            self._check()
            if self._is_idle():
                return await self._freeze_by_moving(below, written)
            shown, written = written, await self._freeze_by_copying(written)
            substrate.frozen.release(shown)
            return await substrate.chains.over(self._cell.chain, [*below, written])
        finally:
            substrate.frozen.release(written)

    def _is_idle(self) -> bool:
        """Whether the cell could be replaced by one with the same files without any visible effect.

        Not on the host's network: there, a cell may have passed an open file to another cell, which could still write.
        Nor with caches: what it has written in them is no part of its files.
        """
        if self._spec.caches or self._spec.network is not Network.NONE:
            return False
        if not self._runner.channel.idle or children(self.pid):
            return False
        try:
            with os.scandir(f"/proc/{self.pid}/root/dev/shm") as shared:
                return next(shared, None) is None
        except OSError:
            return False

    async def _freeze_by_copying(self, shown: FrozenLayer) -> FrozenLayer:
        """Copy the files that the cell wrote while its processes are stopped. For a cell in which something runs."""
        substrate = self._substrate
        async with self._standing_still():
            copied = await substrate.frozen.copy([shown], substrate.next_number())
        if not self.alive:  # the copy may be incomplete, because `destroy` removed files meanwhile
            substrate.frozen.release(copied)
            raise SandboxGone(f"sandbox {self.id} is gone")
        return copied

    @asynccontextmanager
    async def _standing_still(self) -> AsyncIterator[None]:
        """Within the block no process of the cell runs."""
        channel = self._runner.channel
        channel.standing_still = True
        try:
            async with standstill(self.pid, self._cell.spawner_pid, self._substrate.freezer(self._cell)):
                yield
        finally:
            channel.standing_still = False

    async def _freeze_by_moving(self, below: list[FrozenLayer], written: FrozenLayer) -> Chain:
        """End the cell, use its files as a layer without a copy, and continue the sandbox in a new cell over it.

        New actions go to the new cell's stream at once, and wait there until the cell is ready.
        """
        leaving = self._runner.channel
        channel, theirs = self._substrate.stream()
        self._runner.move_to(channel, None)
        try:
            await self._continue_over([*below, written], channel, theirs)
        except BaseException as error:
            theirs.close()
            self._end_calls(error if isinstance(error, InfraFailed) else SubstrateFailed("a snapshot was interrupted"))
            raise
        finally:
            leaving.close()
        return await self._substrate.chains.resolve(self._cell.chain.image)

    async def _continue_over(self, layers: list[FrozenLayer], channel: Channel, theirs: socket.socket) -> None:
        substrate, old = self._substrate, self._cell
        old.kill()
        await old.die()
        substrate.frozen.read_modes(layers[-1])
        chain = await substrate.chains.over(old.chain, layers)
        with on_failure(substrate.chains.release, chain):
            cell = await substrate.spawn(self._spec, chain, channel, theirs)
        if self._ended:  # `destroy` ran meanwhile, and did not know this new cell
            await asyncio.shield(cell.end())
            substrate.chains.release(chain)
            raise SandboxGone(f"sandbox {self.id} is gone")
        self._release_chain_of(old)
        self._cell = cell
        self._old_cells = [each for each in (*self._old_cells, old) if not each.handle.gone.is_set()]
        self._runner.move_to(channel, cell)

    async def _end(self) -> None:
        self._ended = True
        await self._cell.end(within_s=None)
        await self._end_old_cells(within_s=None)
        self._substrate.forget(self)
        self._release_chain_of(self._cell)
        self._substrate.chains.release(self._origin)
