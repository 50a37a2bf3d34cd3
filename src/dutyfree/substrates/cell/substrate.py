"""The cell substrate: sandboxes made from Linux namespaces in milliseconds, without a daemon or an image."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import sys
import time
from functools import partial
from pathlib import Path

from dutyfree import fork_safety
from dutyfree.contract import Sandbox, SpanListener, Substrate
from dutyfree.errors import CallerError, DutyfreeError, InfraFailed, SubstrateFailed, SubstrateUnavailable, Unsupported
from dutyfree.failure import on_failure
from dutyfree.images.ownership import has_roots_id, is_root
from dutyfree.images.store import Store
from dutyfree.model import (
    Capability,
    Image,
    Isolation,
    Network,
    Phase,
    SandboxSpec,
    Span,
    Unenforced,
    Writes,
)
from dutyfree.native import guest_path, spawner_path
from dutyfree.places import state_directory
from dutyfree.substrates import hierarchies
from dutyfree.substrates.cell import cgroups, hostroot, mounts, opening, owner, plan, purity
from dutyfree.substrates.cell.caches import NO_CACHES, CacheVersions, find_versions
from dutyfree.substrates.cell.chain import Chain, Chains
from dutyfree.substrates.cell.disk import DiskTemplates
from dutyfree.substrates.cell.freezer import Freezer
from dutyfree.substrates.cell.frozen import FrozenLayers
from dutyfree.substrates.cell.ids import SHARED, IdRange
from dutyfree.substrates.cell.kinds import CellKind, CellKinds
from dutyfree.substrates.cell.operations import encode
from dutyfree.substrates.cell.sandbox import Cell, CellSandbox
from dutyfree.substrates.cell.setting import Setting
from dutyfree.substrates.cell.shown import NOTHING_SHOWN, ShownSources
from dutyfree.substrates.cell.spawner import Spawner
from dutyfree.wire.channel import Channel


class CellSubstrate(Substrate):
    """Sandboxes made of namespaces, an overlay root, cgroup limits and a system call filter, without privileges.

    Made by root, a cell's users are mapped to a range of ids that own nothing on the host. Made by an ordinary user, a
    cell's root is that user; limits then depend on delegated cgroups, and `Sandbox.unenforced` lists the others.
    """

    name = "cell"
    isolation = Isolation.CONTAINER

    def __init__(
        self,
        *,
        masks: tuple[str | Path, ...] = (),
        store: str | Path | Store | None = None,
        one_file_system: bool = True,
    ) -> None:
        """`masks`: additional files and directories of the host that cells must not see. `store`: the image store.

        `one_file_system`: all files of a cell have the same device number. The kernel then logs a line for each mounted
        overlay. Without it, files of the host and of the cell have different device numbers.
        """
        self._one_file_system = one_file_system
        self._masks = tuple(str(path) for path in masks)
        self._store = store if isinstance(store, Store) else Store(None if store is None else Path(store))
        self._numbers = itertools.count(1)
        self._alive: set[CellSandbox] = set()
        self._spawner: Spawner | None = None
        self._owner: owner.Owner | None = None
        self._setting: Setting | None = None
        self._disks: DiskTemplates | None = None
        self._capabilities = self._find_capabilities()
        """Worked out again by `open`, and then no more: each creation asks for them."""
        self.merging = asyncio.Lock()
        """Saved caches are merged one at a time: threads that wait for each other's locks would keep others waiting."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._capabilities

    def _find_capabilities(self) -> frozenset[Capability]:
        found = {
            Capability.SESSIONS, Capability.TERMINALS, Capability.FILES, Capability.DENY_NETWORK,
            Capability.PRIVATE_FILES, Capability.KILL_TREE, Capability.HOST_PROCESSES, Capability.LIMIT_DISK,
            Capability.RESET, Capability.SNAPSHOT, Capability.FORK, Capability.IMAGES, Capability.HOST_NETWORK,
            Capability.HOST_FILES, Capability.OWN_IDS, Capability.USERS, Capability.PORTS, Capability.MOUNTS,
            Capability.WATCH, Capability.EGRESS, Capability.CACHES,
        }  # fmt: skip
        if self._setting is not None:
            found |= {cgroups.CAPABILITIES[name] for name in self._setting.cgroups.homes}
            found -= {gap.what for gap in self._setting.gaps}
            found |= {Capability.PAUSE} if self._setting.cgroups.freezer else set()
            found -= {Capability.USERS} if self._setting.rootless else set()
        if Capability.DENY_NETWORK not in found:
            found -= {Capability.PORTS, Capability.EGRESS}  # without a network of its own, its ports are the host's
        return frozenset(found)

    async def open(self) -> None:
        if sys.platform != "linux":
            raise SubstrateUnavailable("cells are made of Linux namespaces", hint="run this on Linux")
        found = await asyncio.to_thread(hierarchies.find, make_room=True)
        await asyncio.to_thread(owner.sweep, found)
        spawner = Spawner(spawner_path(), guest_path())
        claimed = owner.claim()
        try:
            await asyncio.to_thread(self.store.open)
            wanted = await asyncio.to_thread(self._survey, claimed, found)
            await spawner.open(*claimed.lock_fds, rootless=wanted.rootless)
            setting = await opening.set_up(spawner, wanted)
        except BaseException:
            await spawner.close()
            claimed.release(found)
            raise
        self._spawner, self._owner, self._setting = spawner, claimed, setting
        self._capabilities = self._find_capabilities()
        self._disks = DiskTemplates(claimed.disk_directory)
        self._kinds = CellKinds(setting, self._disks)
        self.frozen = FrozenLayers(spawner, setting)
        self.chains = Chains(self.store, self.frozen, setting)

    def _survey(self, claimed: owner.Owner, found: hierarchies.Cgroups) -> Setting:
        rootless = not is_root()
        host = hostroot.survey((*self._masks, str(state_directory()), str(self.store.root)), rootless=rootless)
        table = mounts.read()
        hosts = mounts.devices_of(table, ["/", *(part.path for part in host.parts)])
        layers, disk = self.store.layers_directory, claimed.disk_directory
        return Setting(
            owner=claimed.name,
            host=host,
            layers_inside_host=bool(hosts & mounts.devices_of(table, [str(layers.resolve())])),
            disk_inside_host=bool(hosts & mounts.devices_of(table, [str(disk.resolve())])),
            cgroups=found,
            rootless=rootless,
            one_file_system=self._one_file_system,
            proc_is_masked=rootless and mounts.is_masked_proc(table),
            proc_is_read_only=rootless and has_roots_id(),
            state_directory=str(claimed.state_directory),
            disk_directory=str(disk),
            layers_directory=str(layers),
        )

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        setting = self._opened()
        self.check(spec)
        start_ns = time.monotonic_ns()
        chain = await self.chains.resolve(spec.image)
        with on_failure(self.chains.release, chain):
            channel, theirs = self.stream()
            cell = await self.spawn(spec, chain, channel, theirs)
        kind = cell.kind
        if kind.fresh is None:
            try:
                kind.fresh = self.condition(spec, cell)
            except SubstrateFailed as error:
                channel.close()
                await asyncio.shield(cell.end())
                self.chains.release(chain)
                raise await _with_cause(error) from error
        unenforced = kind.unenforced
        if setting.own_ids and cell.ids is SHARED:
            reason = "there are too many cells, or a file system cannot translate ids"
            unenforced = (*unenforced, Unenforced(Capability.OWN_IDS, reason))
        sandbox = CellSandbox(self, cell, channel, spec, kind.fresh, unenforced, on_span)
        self._alive.add(sandbox)
        if on_span is not None:
            spawned_ns = cell.handle.spawned_ns
            on_span(Span(Phase.CREATE, start_ns, spawned_ns, sandbox.id, "spawn"))
            on_span(Span(Phase.READY, spawned_ns, time.monotonic_ns(), sandbox.id, "handshake"))
        return sandbox

    @property
    def store(self) -> Store:
        return self._store

    def named_image(self, name: str) -> Image:
        return self.store.find(name).image

    def stream(self) -> tuple[Channel, socket.socket]:
        """The two ends of a new cell's stream: a channel on our end, and the guest's end for `spawn`."""
        ours, theirs = socket.socketpair()
        fork_safety.keep_from_children(theirs.fileno())  # a child's copy would hide the guest's death from us
        return Channel.over_socket(ours), theirs

    async def spawn(self, spec: SandboxSpec, chain: Chain, channel: Channel, theirs: socket.socket) -> Cell:
        """Make a cell over `chain` whose guest answers on `channel`. Takes ownership of both ends of the stream.

        Raises as `create` does; nothing of the cell is left then.
        """
        with on_failure(channel.close), theirs:
            setting, spawner = self._opened(), self._spawner
            assert spawner is not None
            number = self.next_number()
            template = await self._template(spec) if spec.writes is Writes.DISK else None
            shown = await self._shown(setting, spec) if spec.mounts else NOTHING_SHOWN
            caches = find_versions(self.store, spec.caches, rootless=setting.rootless) if spec.caches else NO_CACHES
            with contextlib.closing(shown), on_failure(caches.release):
                kind = self._kinds.find(spec, chain.base, shown.sources, caches.lowers)
                ids = self._take_ids(kind)
                with on_failure(self._give_back_ids, ids):
                    individual = plan.individual_plan(setting, number, spec, kind.groups, template, ids)
                    handle = await spawner.spawn(number, encode(individual) + kind.plan, theirs, shown.trees)
        handle.on_gone = partial(self._give_back, ids, caches)
        cell = Cell(
            spawner, handle, kind, partial(cgroups.counters, setting.cgroups, setting.owner, number), chain, ids
        )
        handle.on_failure = lambda error: channel.fail(_as_infra(error))
        try:
            await channel.handshake()
            await handle.spawned.wait()  # mostly before the handshake, but by another way
        except BaseException as error:
            channel.close()
            await asyncio.shield(cell.end())
            if isinstance(error, InfraFailed) and handle.failure is not None:
                if isinstance(handle.failure, CallerError):
                    raise handle.failure from None
                raise await _with_cause(handle.failure) from None
            raise
        return cell

    async def _shown(self, setting: Setting, spec: SandboxSpec) -> ShownSources:
        return await ShownSources.find(spec.mounts, self.store.root, rootless=setting.rootless)

    def _take_ids(self, kind: CellKind) -> IdRange:
        if self._owner is None:
            raise SubstrateFailed("the substrate is being closed")
        return (self._owner.ids.take() if kind.can_have_own_ids else None) or SHARED

    def _give_back(self, ids: IdRange, caches: CacheVersions) -> None:
        self._give_back_ids(ids)
        caches.release()

    def _give_back_ids(self, ids: IdRange) -> None:
        if ids is not SHARED and self._owner is not None:
            self._owner.ids.give_back(ids)

    def condition(self, spec: SandboxSpec, cell: Cell) -> purity.Condition:
        """The current condition of a cell. Raises SubstrateFailed if it is dead."""
        own_network = spec.network is Network.NONE
        return purity.inspect(cell.pid, own_network=own_network, upper=self.shared_upper(spec, cell))

    def shared_upper(self, spec: SandboxSpec, cell: Cell) -> Path | None:
        """The directory that a cell writes to, if it is on a disk shared with other cells; else None."""
        if spec.writes is not Writes.DISK or self._is_limited(spec):
            return None
        return Path(self._opened().disk_directory, str(cell.handle.number), "upper")

    def freezer(self, cell: Cell) -> str | None:
        """The cell's cgroup, if the kernel can freeze it; else None."""
        return cgroups.freezer(self._opened().cgroups, self._opened().owner, cell.handle.number)

    def groups(self, cell: Cell) -> list[str]:
        """The cgroups of a cell; those without a limit do not exist."""
        return cgroups.groups(self._opened().cgroups, self._opened().owner, cell.handle.number)

    async def make_freezer(self, cell: Cell) -> Freezer:
        """What freezes the cell. Raises Unsupported where the kernel's freezer cannot be used, and SubstrateFailed."""
        setting, spawner = self._opened(), self._spawner
        group = cgroups.pause_group(setting.cgroups, setting.owner, cell.handle.number)
        if group is None or spawner is None:
            hint = "run as root, or with a delegated cgroup of version 2"
            raise Unsupported("cells cannot be paused here: this user may not freeze cgroups", hint=hint)
        if not os.path.isdir(group):  # noqa: PTH112,ASYNC240 - one call; with version 2, a cell with limits has it already
            await spawner.hold(cell.handle, self.next_number(), group)
        return Freezer(group, cell.pid, cell.spawner_pid)

    def next_number(self) -> int:
        """A new number for a cell or a frozen layer."""
        return next(self._numbers)

    async def _template(self, spec: SandboxSpec) -> str | None:
        size_bytes = spec.resources.disk_bytes
        if size_bytes is None or self._disks is None or not self._is_limited(spec):
            return None
        return await self._disks.template(size_bytes)

    def _is_limited(self, spec: SandboxSpec) -> bool:
        """Whether the upper is on disk and has a size limit that this host can enforce."""
        assert self._disks is not None
        return spec.writes is Writes.DISK and spec.resources.disk_bytes is not None and self._disks.missing is None

    def forget(self, sandbox: CellSandbox) -> None:
        """Remove a sandbox of which nothing is left from the list of live ones."""
        self._alive.discard(sandbox)

    def _opened(self) -> Setting:
        if self._setting is None:
            raise SubstrateFailed("the substrate is not open")
        return self._setting

    async def close(self) -> None:
        spawner, claimed, setting = self._spawner, self._owner, self._setting
        if spawner is None or claimed is None or setting is None:
            return
        self._owner = None
        try:
            await asyncio.gather(*(sandbox.destroy() for sandbox in list(self._alive)))
            await self.frozen.close()
        finally:
            self._spawner = self._setting = None
            try:
                await spawner.close()
            finally:
                claimed.release(setting.cgroups)


def _as_infra(error: DutyfreeError) -> InfraFailed:
    return error if isinstance(error, InfraFailed) else SubstrateFailed(error.message)


async def _with_cause(error: DutyfreeError) -> DutyfreeError:
    """The error with its cause, if it is a property of this machine. The diagnosis runs only after a failure."""
    from dutyfree.substrates.cell.diagnosis import explain

    return await explain(error, spawner_path())
