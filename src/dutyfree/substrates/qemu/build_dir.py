"""The directory where machines are prepared: facts about this host, the devices of images, and templates.

A template is a saved machine that waits for its order. All processes of the user share the directory. Its content is
kept after they end; templates and facts are kept until the host reboots.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Final

from dutyfree import claims, native
from dutyfree.errors import DeadlineExceeded, DutyfreeError, SubstrateFailed, SubstrateUnavailable
from dutyfree.images.store import locks
from dutyfree.images.store.layout import wrap_full_disk
from dutyfree.places import state_directory
from dutyfree.publish import publish
from dutyfree.removal import remove_tree
from dutyfree.substrates.os_errors import wrap_os_errors
from dutyfree.substrates.qemu import blocks, memory, saved
from dutyfree.substrates.qemu.initrd import make_initrd
from dutyfree.substrates.qemu.kernel import Kernel
from dutyfree.substrates.qemu.machine import Machine
from dutyfree.substrates.qemu.plan import PROGRAM, Accelerator, Build
from dutyfree.substrates.qemu.saved import Saved
from dutyfree.threads import in_thread

CLAIMS: Final = "microvm"
KVM: Final = Path("/dev/kvm")
_PROBE_S: Final = 5.0
_PROBE_BYTES: Final = 256 * 1024**2
_KVM_RETRY_S: Final = 600
"""If the probe of KVM timed out, KVM is tried again after this time: the host may have been busy."""
_TEMPLATE_TIMEOUT_S: Final = 300.0
_COMMAND_TIMEOUT_S: Final = 10.0
_STALE_S: Final = 30 * 24 * 3600.0
_MAX_KEPT: Final = 12
"""How many templates are kept; each takes a few hundred MB."""


class BuildDir:
    """The directory of one user, as one process uses it. Methods that are not async block. Call `open` first."""

    def __init__(self, kernel: Kernel, claim: claims.Claim) -> None:
        self.directory = state_directory() / "machines"
        self._images = self.directory / "images"
        self.own = self.directory / "snapshots" / claim.name
        self.devices = blocks.Devices(self._images, self.own)
        self._templates = self.directory / "templates"
        self._claim = claim
        self._kernel = kernel
        self._locks: dict[str, asyncio.Lock] = {}
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.version = ""
        self._tsc_khz = 0
        self._initrd = Path()
        self.accelerator: Accelerator = "tcg"

    @property
    def lock_fd(self) -> int:
        """The lock of the claim, which every QEMU inherits."""
        return self._claim.lock_fd

    async def open(self, wanted: Accelerator | None) -> None:
        """Create the directories, remove what dead processes left, and find out whether KVM works.

        Raises SubstrateUnavailable, CapacityError.
        """
        await in_thread(self._prepare)
        if wanted is None:
            self.accelerator = "kvm" if await self._kvm_works() else "tcg"
        else:
            self.accelerator = wanted

    def _prepare(self) -> None:
        try:
            with wrap_full_disk():
                for place in (self._images, self.own, self._templates):
                    place.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            message = f"the directory for machines cannot be made: {error}"
            raise SubstrateUnavailable(message, hint="set DUTYFREE_STATE_DIR") from error
        self._sweep()
        self.version = _output([PROGRAM, "--version"], "qemu-system-x86").partition("\n")[0]
        self._initrd = make_initrd(self._kernel, self.directory)
        facts = self._read_facts()
        if "tsc_khz" not in facts:
            self._write_facts(tsc_khz=int(_output([str(native.init_path()), "--tsc"], "dutyfree")))
        self._tsc_khz = int(self._read_facts()["tsc_khz"])

    def build(self, memory_bytes: int, cpus: int) -> Build:
        """The build of a machine of this size on this host."""
        return Build(self._kernel.image, self._initrd, memory_bytes, cpus, self.accelerator, self._tsc_khz)

    def saved_path(self, build: Build) -> Path:
        """The path of this build's template, whether or not it exists."""
        kernel = build.kernel.stat()
        facts = (self.version, str(kernel.st_mtime_ns), str(kernel.st_size), str(blocks.CAPACITY_BYTES))
        return self._templates / f"{self._boot}-{build.key(*facts)}"

    async def template(self, build: Build) -> Saved:
        """The template of this build. The first caller that needs it boots and saves it.

        Raises SubstrateUnavailable, SubstrateFailed, DeadlineExceeded, CapacityError.
        """
        path = self.saved_path(build)
        if not path.is_dir():
            async with self._locks.setdefault(path.name, asyncio.Lock()):
                lock_path = path.with_suffix(".lock")
                lock = await in_thread(locks.wait, lock_path, _TEMPLATE_TIMEOUT_S, "the maker of a saved machine")
                try:
                    if not path.is_dir():
                        await self._make_template(build, path)
                        await in_thread(self._trim)
                finally:
                    lock.release(remove=True)
        with wrap_os_errors("a saved machine was removed"):
            os.utime(path)
        return Saved(build, path)

    async def _make_template(self, build: Build, path: Path) -> None:
        draft = Saved(build, path.with_suffix(".draft"))
        await in_thread(remove_tree, draft.directory)
        try:
            with wrap_os_errors("a machine could not be saved"):
                draft.directory.mkdir(mode=0o700)
            machine = await self._boot_blank(build, draft.memory)
            try:
                await saved.stop(machine)
                await saved.save(machine, draft.devices)
            finally:
                await asyncio.shield(machine.end())
            await in_thread(memory.punch_holes, draft.memory)
            with wrap_os_errors("a machine could not be saved"):
                draft.directory.rename(path)
        finally:
            await in_thread(remove_tree, draft.directory)

    def _trim(self) -> None:
        """Remove old templates. Machines that were restored from them still have the files open."""
        templates = sorted(
            (path for path in self._templates.iterdir() if path.is_dir() and not path.suffix),
            key=blocks.last_used_ns,
        )
        for path in templates[:-_MAX_KEPT]:
            remove_tree(path)

    async def _boot_blank(self, build: Build, place: Path, timeout_s: float = saved.BOOT_TIMEOUT_S) -> Machine:
        with wrap_os_errors("the device of a machine could not be made"):
            device = blocks.blank(self.directory)
        machine, ports = await saved.boot(build, memory=place, device=device, lock_fd=self.lock_fd, timeout_s=timeout_s)
        ports.close()
        return machine

    async def _kvm_works(self) -> bool:
        """Whether a machine boots with KVM: it may fail though /dev/kvm exists. Tried once in each boot of the host."""
        if not os.access(KVM, os.R_OK | os.W_OK):
            return False
        facts = await in_thread(self._read_facts)
        if time.time() - facts.get("kvm_late_s", 0) < _KVM_RETRY_S:
            return False
        if "kvm" not in facts:
            build = Build(self._kernel.image, self._initrd, _PROBE_BYTES, 1, "kvm")
            place = self.own / "probe"
            try:
                await (await self._boot_blank(build, place, _PROBE_S)).end()
                works = True
            except DeadlineExceeded:
                await in_thread(self._write_facts, kvm_late_s=int(time.time()))
                return False
            except SubstrateFailed:
                works = False
            finally:
                place.unlink(missing_ok=True)
            await in_thread(self._write_facts, kvm=int(works))
            return works
        return bool(facts["kvm"])

    def _read_facts(self) -> dict[str, int]:
        try:
            facts = json.loads((self.directory / f"host-{self._boot}.json").read_text())
        except (OSError, ValueError):
            return {}
        return facts if isinstance(facts, dict) and all(isinstance(each, int) for each in facts.values()) else {}

    def _write_facts(self, **facts: int) -> None:
        path = self.directory / f"host-{self._boot}.json"
        publish(path, json.dumps({**self._read_facts(), **facts}).encode())

    def _sweep(self) -> None:
        """Remove snapshots of dead processes, and all that was saved before the host's last boot."""
        old = [path for path in self._templates.iterdir() if not path.name.startswith(self._boot)]
        old += [path for path in self.directory.glob("host-*.json") if self._boot not in path.name]
        stale_s = time.time() - _STALE_S
        old += [path for path in self.directory.glob("initrd-*") if path.stat().st_mtime < stale_s]
        old += [path for path in self.own.parent.iterdir() if claims.is_dead(path.name, CLAIMS)]
        for path in old:
            with contextlib.suppress(SubstrateFailed, OSError):
                if path.is_dir():
                    remove_tree(path)
                else:
                    path.unlink(missing_ok=True)
        for directory in claims.dead(CLAIMS):
            claims.forget(directory)

    async def close(self) -> None:
        """Remove this process's own snapshots and links. Idempotent."""
        with contextlib.suppress(DutyfreeError):
            await in_thread(remove_tree, self.own)


def _output(argv: list[str], package: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, check=True, text=True, timeout=_COMMAND_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SubstrateUnavailable(f"{argv[0]} does not work: {error}", hint=f"install {package}") from error
