"""Cells: sandboxes made of the kernel's own parts, in milliseconds, without a daemon or an image."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import sys
import time
from pathlib import Path

from dutyfree.contract import Sandbox, SpanListener, Substrate
from dutyfree.errors import DutyfreeError, InfraFailed, SubstrateFailed, SubstrateUnavailable
from dutyfree.guest import DEFAULT_ENVIRONMENT, GuestSandbox, LimitCounters
from dutyfree.images.ownership import is_root
from dutyfree.model import Capability, Isolation, Phase, SandboxSpec, Span, Unenforced, Upper
from dutyfree.native import guest_path, spawner_path
from dutyfree.substrates.cell import cgroups, hostroot, owner, plan
from dutyfree.substrates.cell.cgroups import CellCounters
from dutyfree.substrates.cell.disk import DiskTemplates
from dutyfree.substrates.cell.operations import encode
from dutyfree.substrates.cell.spawner import Birth, Spawner
from dutyfree.wire.channel import Channel

HOME = "/root"
DESTROY_S = 30.0
COMMON_PLANS = 256


class CellSubstrate(Substrate):
    """Namespaces, an overlay root, cgroup limits, a system call filter and no privileges.

    As root, a cell's users stand for a range of ids that own nothing on the host. As an ordinary user, a cell's root is
    that user; limits then depend on what was delegated, and `Sandbox.unenforced` names those that are not held.
    """

    name = "cell"
    isolation = Isolation.CONTAINER

    def __init__(self, *, masks: tuple[str | Path, ...] = ()) -> None:
        """`masks`: further files and directories of the host that cells must not see."""
        self._masks = tuple(str(path) for path in masks)
        self._numbers = itertools.count(1)
        self._alive: dict[int, Cell] = {}
        self._spawner: Spawner | None = None
        self._owner: owner.Owner | None = None
        self._setting: plan.Setting | None = None
        self._disks: DiskTemplates | None = None
        self._common: dict[tuple[object, ...], bytes] = {}

    @property
    def capabilities(self) -> frozenset[Capability]:
        found = {
            Capability.SESSIONS, Capability.TERMINALS, Capability.FILES, Capability.DENY_NETWORK,
            Capability.PRIVATE_FILES, Capability.KILL_TREE, Capability.HOST_PROCESSES, Capability.LIMIT_DISK,
        }  # fmt: skip
        if self._setting is not None:
            found |= {cgroups.CAPABILITIES[name] for name in self._setting.cgroups.homes}
        return frozenset(found)

    async def open(self) -> None:
        if sys.platform != "linux":
            raise SubstrateUnavailable("cells are made of Linux namespaces", hint="run this on Linux")
        found = cgroups.find()
        await asyncio.to_thread(owner.sweep, found)
        spawner = Spawner(spawner_path(), guest_path())
        claimed = owner.claim()
        try:
            setting = plan.Setting(
                owner=claimed.name,
                host=await asyncio.to_thread(hostroot.survey, (*self._masks, str(owner.disk_base()))),
                cgroups=found,
                rootless=not is_root(),
                state_directory=str(claimed.state_directory),
                disk_directory=str(claimed.disk_directory),
            )
            await spawner.open(plan.spawner_plan(setting), claimed.lock_fd)
        except BaseException:
            await spawner.close()
            claimed.release(found)
            raise
        self._spawner, self._owner, self._setting = spawner, claimed, setting
        self._disks = DiskTemplates(claimed.disk_directory)

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        spawner, setting = self._spawner, self._setting
        if spawner is None or setting is None:
            raise SubstrateFailed("the substrate is not open")
        start_ns = time.monotonic_ns()
        number = next(self._numbers)
        template = await self._template(spec)
        message = encode(plan.individual_plan(setting, number, spec, template)) + self._common_plan(setting, spec)
        ours, theirs = socket.socketpair()
        try:
            birth = spawner.spawn(number, message, theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        cell = Cell(self, birth, spawner, cgroups.counters(setting.cgroups, setting.owner, number))
        self._alive[number] = cell
        channel = Channel.over_socket(ours)
        birth.on_failure = lambda error: channel.fail(_as_infra(error))
        try:
            cell.pid = await birth.spawned
            spawned_ns = time.monotonic_ns()
            await channel.handshake()
        except BaseException as error:
            channel.close()
            await asyncio.shield(cell.end())
            if isinstance(error, InfraFailed) and birth.failure is not None:
                raise birth.failure from None
            raise
        if on_span is not None:
            on_span(Span(Phase.CREATE, start_ns, spawned_ns, cell.id, "spawn"))
            on_span(Span(Phase.READY, spawned_ns, time.monotonic_ns(), cell.id, "handshake"))
        return cell.sandbox(channel, spec, self._unenforced(setting, spec), on_span)

    def _common_plan(self, setting: plan.Setting, spec: SandboxSpec) -> bytes:
        key = (spec.network, spec.upper, spec.hostname, plan.tmpfs_bytes(spec.resources))
        if key not in self._common:
            if len(self._common) == COMMON_PLANS:
                self._common.clear()
            self._common[key] = encode(plan.common_plan(setting, spec))
        return self._common[key]

    async def _template(self, spec: SandboxSpec) -> str | None:
        if spec.upper is not Upper.DISK or spec.resources.disk_bytes is None:
            return None
        assert self._disks is not None
        return None if self._disks.missing() else await self._disks.template(spec.resources.disk_bytes)

    def _unenforced(self, setting: plan.Setting, spec: SandboxSpec) -> tuple[Unenforced, ...]:
        found = cgroups.unenforced(setting.cgroups, spec.resources)
        if spec.upper is Upper.DISK and spec.resources.disk_bytes is not None and self._disks is not None:
            reason = self._disks.missing()
            found += [Unenforced(Capability.LIMIT_DISK, reason)] if reason else []
        return tuple(found)

    def forget(self, number: int) -> None:
        """A cell has been given back completely."""
        self._alive.pop(number, None)

    async def close(self) -> None:
        spawner, claimed, setting = self._spawner, self._owner, self._setting
        self._spawner = self._owner = self._setting = None
        if spawner is None or claimed is None or setting is None:
            return
        try:
            await asyncio.gather(*(cell.destroy_sandbox() for cell in list(self._alive.values())))
        finally:
            try:
                await spawner.close()
            finally:
                claimed.release(setting.cgroups)


class Cell:
    """The host's record of one cell: what watches its limits and what ends it."""

    def __init__(self, substrate: CellSubstrate, birth: Birth, spawner: Spawner, counters: CellCounters) -> None:
        self._substrate = substrate
        self._birth = birth
        self._spawner = spawner
        self._counters = counters
        self._sandbox: CellSandbox | None = None
        self.id = f"cell-{os.getpid()}-{birth.number}"
        self.pid = 0

    def sandbox(
        self, channel: Channel, spec: SandboxSpec, unenforced: tuple[Unenforced, ...], on_span: SpanListener | None
    ) -> Sandbox:
        """The cell as its owner sees it."""
        environment = {**DEFAULT_ENVIRONMENT, **spec.env}
        self._sandbox = CellSandbox(
            self.id, channel, destroy=self.end, env=environment, cwd=HOME, unenforced=unenforced, limits=self,
            on_span=on_span,
        )  # fmt: skip
        self._sandbox.pid = self.pid
        return self._sandbox

    def counters(self) -> LimitCounters:
        """What the cell's cgroups have counted so far."""
        return LimitCounters(
            oom_kills=cgroups.read_counter(self._counters.oom, "oom_kill"),
            fork_refusals=cgroups.read_counter(self._counters.pids, "max"),
        )

    async def end(self) -> None:
        """Kill the cell and wait until nothing of it is left. Raises SubstrateFailed."""
        self._spawner.kill(self._birth)
        try:
            async with asyncio.timeout(DESTROY_S):
                await asyncio.shield(self._birth.gone)
        except TimeoutError:
            raise SubstrateFailed(f"{self.id} could not be destroyed within {DESTROY_S:.0f} s") from None
        self._substrate.forget(self._birth.number)

    async def destroy_sandbox(self) -> None:
        """End it through its sandbox, so that whoever holds that learns of it."""
        await (self._sandbox.destroy() if self._sandbox else self.end())


class CellSandbox(GuestSandbox):
    """A sandbox whose guest is a process of this machine."""

    pid: int = 0
    """The guest's process id on the host."""


def _as_infra(error: DutyfreeError) -> InfraFailed:
    return error if isinstance(error, InfraFailed) else SubstrateFailed(error.message)
