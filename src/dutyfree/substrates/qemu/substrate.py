"""The microVM substrate: machines restored from one saved machine, each with its own image."""

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
from dutyfree.failure import await_on_failure, on_failure
from dutyfree.guest.runner import Runner
from dutyfree.images.store import Store
from dutyfree.model import Action, ActionPath, Capability, Image, Isolation, Phase, Resources, SandboxSpec
from dutyfree.substrates.engine import EngineSubstrate, Marks
from dutyfree.substrates.os_errors import wrap_os_errors
from dutyfree.substrates.qemu import plan, saved
from dutyfree.substrates.qemu.body import MicroVMBody, RunningVM
from dutyfree.substrates.qemu.build_dir import CLAIMS, BuildDir
from dutyfree.substrates.qemu.kernel import find_kernel
from dutyfree.substrates.qemu.plan import Accelerator, Build
from dutyfree.substrates.qemu.pool import Pool
from dutyfree.substrates.qemu.saved import Saved
from dutyfree.substrates.qemu.snapshot import Frozen, FrozenMachines, MicroVMSnapshot, freeze
from dutyfree.substrates.qemu.vm_clones import VMClones
from dutyfree.threads import in_thread

MAX_POOL: Final = 256
_WARM_UP_S: Final = 30.0
CAPABILITIES: Final = frozenset(
    {
        Capability.SESSIONS, Capability.TERMINALS, Capability.FILES, Capability.LIMIT_MEMORY, Capability.LIMIT_PIDS,
        Capability.LIMIT_CPU, Capability.LIMIT_DISK, Capability.DENY_NETWORK, Capability.PRIVATE_FILES,
        Capability.KILL_TREE, Capability.RESET, Capability.SNAPSHOT, Capability.FORK, Capability.IMAGES,
        Capability.HOST_PROCESSES, Capability.USERS, Capability.PORTS, Capability.EGRESS, Capability.PAUSE,
        Capability.WATCH,
    }
)  # fmt: skip


class MicroVMSubstrate(EngineSubstrate):
    """QEMU machines of the type `microvm` that contain our init, our guest and the image."""

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
        standby: int = 0,
        accelerator: Accelerator | None = None,
    ) -> None:
        """`kernel`: the directory with boot/ and lib/modules/; by default $DUTYFREE_KERNEL, else /.

        `boot`: "restore" starts machines from a saved machine, "cold" boots the kernel for each. `standby`: how many
        machines are kept ready for creations. `accelerator`: "kvm" or "tcg" (software emulation); by default "kvm"
        where it works.
        """
        super().__init__(path=path, image=image, store=store)
        if self.path is not ActionPath.GUEST:
            raise Unsupported(
                "a microVM has no control plane that could run single actions",
                hint="use path='guest', or the substrate 'vm', which has SSH",
            )
        if boot not in ("restore", "cold") or accelerator not in (None, "kvm", "tcg"):
            raise InvalidRequest(f"boot={boot!r}, accelerator={accelerator!r}: machines cannot be started that way")
        if not 0 <= standby <= MAX_POOL:
            raise InvalidRequest(f"standby={standby!r}: between 0 and {MAX_POOL} machines can be kept ready")
        self._kernel = kernel
        self._cold = boot == "cold"
        self._wanted_accelerator = accelerator
        self._pool = Pool(standby, self._restore_for)
        self._clones = VMClones(self._save_clone_source)
        self._numbers = itertools.count(1)
        self.frozen_machines = FrozenMachines()
        self._claim: claims.Claim | None = None
        self._build_dir: BuildDir | None = None

    @property
    def capabilities(self) -> frozenset[Capability]:
        return CAPABILITIES

    @property
    def without_mounts(self) -> str:
        return f"a sandbox of {self.name!r} is a machine of its own, which has no file system in common with this one"

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
        """`kvm`, or `tcg`: every processor is emulated, and about 40 times slower. Known after `open`."""
        return self._opened().accelerator

    async def open(self) -> None:
        if self._build_dir is not None:
            return
        kernel = await in_thread(find_kernel, self._kernel)
        await in_thread(self.store.open)
        claim = await in_thread(claims.claim, CLAIMS)
        build_dir = BuildDir(kernel, claim)
        try:
            await build_dir.open(self._wanted_accelerator)
        except BaseException:
            await build_dir.close()
            await in_thread(claim.release)
            await in_thread(self.store.close)
            raise
        self._claim, self._build_dir = claim, build_dir

    async def make_body(self, spec: SandboxSpec, marks: Marks) -> MicroVMBody:
        with wrap_os_errors("a machine could not be created"):
            if spec.image.layers and spec.image.layers[-1].startswith("live:"):
                return await self._from_snapshot(spec, marks)
            return await self._from_image(spec, marks)

    async def _from_image(self, spec: SandboxSpec, marks: Marks) -> MicroVMBody:
        build_dir = self._opened()
        with marks.step(Phase.CREATE, "image"):
            image = await in_thread(self.image_for, spec)
            if image.reference:
                raise InvalidRequest("a microVM starts from images of the store, not of an engine")
            device = await in_thread(build_dir.devices.hold, self.store, image)
        async with await_on_failure(self.give_back, device):
            body = await self._make_from(spec, marks, image, device)
        body.device = device
        return body

    async def _make_from(self, spec: SandboxSpec, marks: Marks, image: Image, device: Path) -> MicroVMBody:
        build_dir, build = self._opened(), self._build(spec.resources)
        if self._cold:
            with marks.step(Phase.CREATE, "boot"):
                vm = await self._boot(build, device, spec.resources)
        else:
            if not build_dir.saved_path(build).exists():
                with marks.step(Phase.CREATE, "boot"):
                    await build_dir.template(build)
            with marks.step(Phase.CREATE, "restore"):
                vm = await self._pool.take(build, device, spec.resources)
        with marks.step(Phase.READY, "handshake"):
            return await MicroVMBody.start_guest(self, vm, spec, image)

    def _build(self, resources: Resources) -> Build:
        build_dir = self._opened()
        cpus = plan.machine_cpus(resources, build_dir.accelerator, os.cpu_count() or 1)
        return build_dir.build(plan.machine_bytes(resources), cpus)

    async def _from_snapshot(self, spec: SandboxSpec, marks: Marks) -> MicroVMBody:
        frozen = self.frozen_machines.hold(spec.image.layers[-1])
        if spec.resources != frozen.resources:
            await self.frozen_machines.release(frozen)
            raise Unsupported("a microVM that starts from a snapshot must have the same bounds as the snapshot")
        with marks.step(Phase.CREATE, "restore"):
            vm = await self._restore_frozen(frozen, self.frozen_machines.release)
        with marks.step(Phase.READY, "handshake"):
            return await MicroVMBody.start_guest(self, vm, spec, spec.image)

    async def freeze(self, body: MicroVMBody, vm: RunningVM) -> MicroVMSnapshot:
        """Take a snapshot of a sandbox's machine. Raises SubstrateFailed, CapacityError, DeadlineExceeded."""
        return MicroVMSnapshot(await self._save_frozen(body, vm), body.image, self.frozen_machines)

    async def _save_frozen(self, body: MicroVMBody, vm: RunningVM) -> Frozen:
        name = f"microvm-{os.getpid()}-{next(self._numbers)}"
        directory = self._opened().own / name
        return await freeze(vm, body.channel, directory, f"live:{name}", body.resources)

    async def _save_clone_source(self, device: Path, resources: Resources) -> Frozen:
        """Save a machine with this image that has run one program, so that clones have its files in the page cache."""
        # Hold the device before the first await: the sandbox that caused this call may end and release it meanwhile.
        self._opened().devices.hold_again(device)
        try:
            with wrap_os_errors("a machine could not be saved"):
                vm = await self._restore_template(self._build(resources), device, resources)
                body = await MicroVMBody.start_guest(self, vm, SandboxSpec(resources), Image())
                try:
                    # In an image without a shell this only gives a failed observation.
                    warm_up = Action(["/bin/sh", "-c", ":"], timeout_s=_WARM_UP_S)
                    await Runner("clone", body.channel, env=body.env, cwd="/", limits=None, on_span=None).run(warm_up)
                    return await self._save_frozen(body, vm)
                finally:
                    body.channel.close()
                    await asyncio.shield(body.end())
        finally:
            await asyncio.shield(self.give_back(device))

    async def give_back(self, device: Path) -> None:
        """Release a device that a sandbox does not need any more."""
        if self._build_dir is not None:
            await in_thread(self._build_dir.devices.release, device)

    async def let_go(self) -> None:
        build_dir, self._build_dir = self._build_dir, None
        claim, self._claim = self._claim, None
        if build_dir is None or claim is None:
            return
        self.frozen_machines = FrozenMachines()
        # The stack runs the last callback first, and runs all of them even if some raise.
        async with AsyncExitStack() as stack:
            stack.push_async_callback(in_thread, self.store.close)
            stack.push_async_callback(in_thread, claim.release)
            stack.push_async_callback(build_dir.close)
            stack.push_async_callback(self._clones.clear)
            await self._pool.clear()

    async def _boot(self, build: Build, device: Path, resources: Resources) -> RunningVM:
        build_dir = self._opened()
        memory = build_dir.own / f"boot-{next(self._numbers)}"
        try:
            machine, ports = await saved.boot(build, memory=memory, device=device, lock_fd=build_dir.lock_fd)
            vm = RunningVM(machine, ports, build, device, -1, shared=True, first_message=plan.order(resources))
            async with await_on_failure(vm.end):
                vm.memory_fd = _open(memory)
            return vm
        finally:
            memory.unlink(missing_ok=True)  # QEMU has the file open, and needs no name for it

    async def _restore_for(self, build: Build, device: Path, resources: Resources) -> RunningVM:
        source = self._clones.hold(device, resources)
        if source is not None:
            return await self._restore_frozen(source, self._clones.release)
        return await self._restore_template(build, device, resources)

    async def _restore_template(self, build: Build, device: Path, resources: Resources) -> RunningVM:
        vm = await self._restore(await self._opened().template(build), device)
        vm.first_message = plan.order(resources)
        return vm

    async def _restore_frozen(self, frozen: Frozen, release: Callable[[Frozen], Awaitable[None]]) -> RunningVM:
        """Restore a machine that releases `frozen` when it ends; if this raises, `frozen` is released at once."""
        async with await_on_failure(release, frozen):
            vm = await self._restore(frozen.saved, frozen.device)
        vm.release_source = partial(release, frozen)
        return vm

    async def _restore(self, frozen: Saved, device: Path) -> RunningVM:
        with wrap_os_errors("a saved machine cannot be read"):
            memory_fd = _open(frozen.memory)
        with on_failure(os.close, memory_fd):
            lock_fd = self._opened().lock_fd
            machine, ports = await saved.restore(frozen, device=device, lock_fd=lock_fd)
        return RunningVM(machine, ports, frozen.build, device, memory_fd, shared=False)

    def _opened(self) -> BuildDir:
        if self._build_dir is None:
            raise InvalidRequest("the substrate is not open")
        return self._build_dir


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
