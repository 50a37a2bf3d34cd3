"""The substrate: microVMs from one saved machine, each with an image of its own."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, Literal

from dutyfree import claims
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.guest.runner import Runner
from dutyfree.images.store import Store
from dutyfree.model import Action, ActionPath, Capability, Image, Isolation, Phase, Resources, SandboxSpec
from dutyfree.substrates.engine import EngineSubstrate, Marks
from dutyfree.substrates.qemu import plan, saved
from dutyfree.substrates.qemu.body import Awake, MicroVMBody
from dutyfree.substrates.qemu.doubles import Doubles
from dutyfree.substrates.qemu.kernel import find_kernel
from dutyfree.substrates.qemu.plan import Accelerator, Build
from dutyfree.substrates.qemu.pool import Pool
from dutyfree.substrates.qemu.refusals import wrap_os_errors
from dutyfree.substrates.qemu.saved import Saved
from dutyfree.substrates.qemu.snapshot import Frozen, MicroVMSnapshot, Shelf, freeze
from dutyfree.substrates.qemu.workshop import CLAIMS, Workshop
from dutyfree.threads import in_thread

MAX_POOL: Final = 256
_WARM_UP_S: Final = 30.0
CAPABILITIES: Final = frozenset(
    {
        Capability.SESSIONS, Capability.TERMINALS, Capability.FILES, Capability.LIMIT_MEMORY, Capability.LIMIT_PIDS,
        Capability.LIMIT_CPU, Capability.LIMIT_DISK, Capability.DENY_NETWORK, Capability.PRIVATE_FILES,
        Capability.KILL_TREE, Capability.RESET, Capability.SNAPSHOT, Capability.FORK, Capability.IMAGES,
        Capability.HOST_PROCESSES,
    }
)  # fmt: skip


class MicroVMSubstrate(EngineSubstrate):
    """QEMU's `microvm` machines with our init and our guest in them, and nothing else but the image."""

    name = "microvm"
    isolation = Isolation.MICROVM

    def __init__(
        self,
        *,
        path: ActionPath | str = ActionPath.GUEST,
        image: Image | str | None = None,
        store: Store | str | Path | None = None,
        kernel: str | Path | None = None,
        boot: Literal["restore", "cold"] = "restore",
        pool: int = 0,
        accelerator: Accelerator | None = None,
    ) -> None:
        """`kernel`: the directory that has boot/ and lib/modules/; otherwise DUTYFREE_KERNEL, otherwise /.

        `boot`: "restore" starts machines from a saved one, "cold" each from its kernel. `pool`: how many machines wait
        for a creation. `accelerator`: "kvm" or "tcg" (software emulation) instead of what is found to work.
        """
        super().__init__(path=path, image=image, store=store)
        if self.path is not ActionPath.GUEST:
            raise Unsupported(
                "a microVM has no control plane by which single actions could be run",
                hint="use path='guest', or the substrate 'vm', which has SSH",
            )
        if boot not in ("restore", "cold") or accelerator not in (None, "kvm", "tcg"):
            raise InvalidRequest(f"boot={boot!r}, accelerator={accelerator!r}: there is no such way to start machines")
        if not 0 <= pool <= MAX_POOL:
            raise InvalidRequest(f"pool={pool!r}: between 0 and {MAX_POOL} machines can wait")
        self._kernel = kernel
        self._cold = boot == "cold"
        self._wanted_accelerator = accelerator
        self._pool = Pool(pool, self._wake)
        self._doubles = Doubles(self._double)
        self._numbers = itertools.count(1)
        self.shelf = Shelf()
        self._claim: claims.Claim | None = None
        self._workshop: Workshop | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        return CAPABILITIES

    @property
    def emulated(self) -> bool:
        return self.accelerator == "tcg"

    @property
    def version(self) -> str:
        return self._opened().version

    @property
    def snapshots_hold_memory(self) -> bool:
        return True

    @property
    def accelerator(self) -> Accelerator:
        """`kvm`, or `tcg` where every processor is emulated, some forty times slower. Known after `open`."""
        return self._opened().accelerator

    async def open(self) -> None:
        if self._workshop is not None:
            return
        kernel = await in_thread(find_kernel, self._kernel)
        await in_thread(self.store.open)
        claim = await in_thread(claims.claim, CLAIMS)
        workshop = Workshop(kernel, claim)
        try:
            await workshop.open(self._wanted_accelerator)
        except BaseException:
            await workshop.close()
            await in_thread(claim.release)
            await in_thread(self.store.close)
            raise
        self._claim, self._workshop = claim, workshop

    async def make_body(self, spec: SandboxSpec, marks: Marks) -> MicroVMBody:
        with wrap_os_errors("a machine could not be made"):
            if spec.image.layers and spec.image.layers[-1].startswith("live:"):
                return await self._from_snapshot(spec, marks)
            return await self._from_image(spec, marks)

    async def _from_image(self, spec: SandboxSpec, marks: Marks) -> MicroVMBody:
        workshop = self._opened()
        with marks.step(Phase.CREATE, "image"):
            image = await in_thread(self.image_for, spec)
            if image.reference:
                raise InvalidRequest("a microVM starts from images of the store, not of an engine")
            device = await in_thread(workshop.devices.hold, self.store, image)
        try:
            body = await self._made(spec, marks, image, device)
        except BaseException:
            await asyncio.shield(self.give_back(device))
            raise
        body.device = device
        return body

    async def _made(self, spec: SandboxSpec, marks: Marks, image: Image, device: Path) -> MicroVMBody:
        workshop, build = self._opened(), self._build(spec.resources)
        if self._cold:
            with marks.step(Phase.CREATE, "boot"):
                awake = await self._boot(build, device, spec.resources)
        else:
            if not workshop.saved_path(build).exists():
                with marks.step(Phase.CREATE, "boot"):
                    await workshop.template(build)
            with marks.step(Phase.CREATE, "restore"):
                awake = await self._pool.take(build, device, spec.resources)
        with marks.step(Phase.READY, "handshake"):
            return await MicroVMBody.greeted(self, awake, spec, image)

    def _build(self, resources: Resources) -> Build:
        workshop = self._opened()
        cpus = plan.machine_cpus(resources, workshop.accelerator, os.cpu_count() or 1)
        return workshop.build(plan.machine_bytes(resources), cpus)

    async def _from_snapshot(self, spec: SandboxSpec, marks: Marks) -> MicroVMBody:
        frozen = self.shelf.hold(spec.image.layers[-1])
        if spec.resources != frozen.resources:
            await self.shelf.release(frozen)
            raise Unsupported("a microVM that starts from a snapshot has the bounds that the snapshot had")
        with marks.step(Phase.CREATE, "restore"):
            awake = await self._restored_from(frozen, self.shelf.release)
        with marks.step(Phase.READY, "handshake"):
            return await MicroVMBody.greeted(self, awake, spec, spec.image)

    async def freeze(self, body: MicroVMBody, awake: Awake) -> MicroVMSnapshot:
        """A snapshot of one of our machines. Raises SubstrateFailed, CapacityError, DeadlineExceeded."""
        return MicroVMSnapshot(await self._frozen(body, awake), body.image, self.shelf)

    async def _frozen(self, body: MicroVMBody, awake: Awake) -> Frozen:
        name = f"microvm-{os.getpid()}-{next(self._numbers)}"
        directory = self._opened().own / name
        return await freeze(awake, body.channel, directory, f"live:{name}", body.resources)

    async def _double(self, device: Path, resources: Resources) -> Frozen:
        """A machine with this image that has run a program: what that needed lies in its memory."""
        self._opened().devices.hold_again(device)  # at once: whoever asked for a double may be gone before it is there
        try:
            with wrap_os_errors("a machine could not be saved"):
                awake = await self._waiting_for_order(self._build(resources), device, resources)
                body = await MicroVMBody.greeted(self, awake, SandboxSpec(resources), Image())
                try:
                    warm_up = Action(["/bin/sh", "-c", ":"], timeout_s=_WARM_UP_S)  # an image without a shell says so
                    await Runner("double", body.channel, env=body.env, cwd="/", limits=None, on_span=None).run(warm_up)
                    return await self._frozen(body, awake)
                finally:
                    body.channel.close()
                    await asyncio.shield(body.end())
        finally:
            await asyncio.shield(self.give_back(device))

    async def give_back(self, device: Path) -> None:
        """A sandbox needs its device no more."""
        if self._workshop is not None:
            await in_thread(self._workshop.devices.release, device)

    async def let_go(self) -> None:
        workshop, self._workshop = self._workshop, None
        claim, self._claim = self._claim, None
        if workshop is None or claim is None:
            return
        self.shelf = Shelf()
        async with AsyncExitStack() as rest:  # the last one first, and each of them whatever becomes of the others
            rest.push_async_callback(in_thread, self.store.close)
            rest.push_async_callback(in_thread, claim.release)
            rest.push_async_callback(workshop.close)
            rest.push_async_callback(self._doubles.clear)
            await self._pool.clear()

    async def _boot(self, build: Build, device: Path, resources: Resources) -> Awake:
        workshop = self._opened()
        memory = workshop.own / f"boot-{next(self._numbers)}"
        try:
            machine, ports = await saved.boot(build, memory=memory, device=device, lock_fd=workshop.lock_fd)
            awake = Awake(machine, ports, build, device, -1, shared=True, word=plan.order(resources))
            try:
                awake.memory_fd = _open(memory)
            except BaseException:
                await asyncio.shield(awake.end())
                raise
            return awake
        finally:
            memory.unlink(missing_ok=True)  # the machine has it open

    async def _wake(self, build: Build, device: Path, resources: Resources) -> Awake:
        double = self._doubles.hold(device, resources)
        if double is not None:
            return await self._restored_from(double, self._doubles.release)
        return await self._waiting_for_order(build, device, resources)

    async def _waiting_for_order(self, build: Build, device: Path, resources: Resources) -> Awake:
        awake = await self._restored(await self._opened().template(build), device)
        awake.word = plan.order(resources)
        return awake

    async def _restored_from(self, frozen: Frozen, release: Callable[[Frozen], Awaitable[None]]) -> Awake:
        """A machine that gives back what it was waked up from when it ends; so does this if it raises."""
        try:
            awake = await self._restored(frozen.saved, frozen.device)
        except BaseException:
            await asyncio.shield(release(frozen))
            raise
        awake.let_go = partial(release, frozen)
        return awake

    async def _restored(self, frozen: Saved, device: Path) -> Awake:
        with wrap_os_errors("a saved machine cannot be read"):
            memory_fd = _open(frozen.memory)
        try:
            lock_fd = self._opened().lock_fd
            machine, ports = await saved.restore(frozen, device=device, lock_fd=lock_fd)
        except BaseException:
            os.close(memory_fd)
            raise
        return Awake(machine, ports, frozen.build, device, memory_fd, shared=False)

    def _opened(self) -> Workshop:
        if self._workshop is None:
            raise InvalidRequest("the substrate is not open")
        return self._workshop


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
