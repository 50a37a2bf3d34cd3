"""Where machines are prepared: what is known of this host, devices with images, and saved machines to start from.

Everything lies in one directory, lasts, and is shared by all processes of this user; saved machines last until the host
is started anew.
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

from dutyfree import native
from dutyfree.errors import DeadlineExceeded, DutyfreeError, SubstrateFailed, SubstrateUnavailable
from dutyfree.images.blocking import in_thread
from dutyfree.images.store import locks
from dutyfree.images.store.layout import wrap_full_disk
from dutyfree.places import state_directory
from dutyfree.removal import remove_tree
from dutyfree.substrates import claims
from dutyfree.substrates.qemu import blocks, memory, saved
from dutyfree.substrates.qemu.initrd import make_initrd
from dutyfree.substrates.qemu.kernel import Kernel
from dutyfree.substrates.qemu.machine import Machine
from dutyfree.substrates.qemu.plan import PROGRAM, Accelerator, Build
from dutyfree.substrates.qemu.refusals import told
from dutyfree.substrates.qemu.saved import Saved

CLAIMS: Final = "microvm"
KVM: Final = Path("/dev/kvm")
_PROBE_S: Final = 5.0
_PROBE_BYTES: Final = 256 * 1024**2
_DOUBT_S: Final = 600
"""How long a machine that was merely late speaks against KVM: the host may have been busy."""
_TEMPLATE_TIMEOUT_S: Final = 300.0
_ASK_TIMEOUT_S: Final = 10.0
_STALE_S: Final = 30 * 24 * 3600.0
_KEPT: Final = 12
"""Saved machines, of some hundred MB each."""


class Workshop:
    """Blocking, but for what is async. Made by `open`."""

    def __init__(self, kernel: Kernel, claim: claims.Claim) -> None:
        self.directory = state_directory() / "machines"
        self._images = self.directory / "images"
        self.own = self.directory / "snapshots" / claim.name
        self.devices = blocks.Devices(self._images, self.own)
        self._templates = self.directory / "templates"
        self._claim = claim
        self._kernel = kernel
        self._turns: dict[str, asyncio.Lock] = {}
        self._boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        self.version = ""
        self._tsc_khz = 0
        self._initrd = Path()
        self.accelerator: Accelerator = "tcg"

    @property
    def lock_fd(self) -> int:
        """For machines to inherit."""
        return self._claim.lock_fd

    async def open(self, wanted: Accelerator | None) -> None:
        """Make room, remove what the dead have left, and find out what this host can do.

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
            raise SubstrateUnavailable(f"no place for machines: {error}", hint="set DUTYFREE_STATE_DIR") from error
        self._sweep()
        self.version = _answer([PROGRAM, "--version"], "qemu-system-x86").partition("\n")[0]
        self._initrd = make_initrd(self._kernel, self.directory)
        known = self._known()
        if "tsc_khz" not in known:
            self._note(tsc_khz=int(_answer([str(native.init_path()), "--tsc"], "dutyfree")))
        self._tsc_khz = int(self._known()["tsc_khz"])

    def build(self, memory_bytes: int, cpus: int) -> Build:
        """A machine of this size on this host."""
        return Build(self._kernel.image, self._initrd, memory_bytes, cpus, self.accelerator, self._tsc_khz)

    def saved_path(self, build: Build) -> Path:
        """Where the saved machine of this build is, or would be."""
        kernel = build.kernel.stat()
        facts = (self.version, str(kernel.st_mtime_ns), str(kernel.st_size), str(blocks.CAPACITY_BYTES))
        return self._templates / f"{self._boot}-{build.key(*facts)}"

    async def template(self, build: Build) -> Saved:
        """A machine of this build that waits for its order; started and saved by whoever needs it first.

        Raises SubstrateUnavailable, SubstrateFailed, DeadlineExceeded, CapacityError.
        """
        path = self.saved_path(build)
        if not path.is_dir():
            async with self._turns.setdefault(path.name, asyncio.Lock()):
                lock_path = path.with_suffix(".lock")
                lock = await in_thread(locks.wait, lock_path, _TEMPLATE_TIMEOUT_S, "the maker of a saved machine")
                try:
                    if not path.is_dir():
                        await self._make_template(build, path)
                        await in_thread(self._trim)
                finally:
                    lock.release(remove=True)
        with told("a saved machine is gone"):
            os.utime(path)
        return Saved(build, path)

    async def _make_template(self, build: Build, path: Path) -> None:
        draft = Saved(build, path.with_suffix(".draft"))
        await in_thread(remove_tree, draft.directory)
        try:
            with told("a machine could not be saved"):
                draft.directory.mkdir(mode=0o700)
            machine = await self._booted(build, draft.memory)
            try:
                await saved.stop(machine)
                await saved.save(machine, draft.devices)
            finally:
                await asyncio.shield(machine.end())
            await in_thread(memory.dig, draft.memory)
            with told("a machine could not be saved"):
                draft.directory.rename(path)
        finally:
            await in_thread(remove_tree, draft.directory)

    def _trim(self) -> None:
        """Machines that were waked up from what goes here have its files open, and keep them."""
        known = sorted(
            (path for path in self._templates.iterdir() if path.is_dir() and not path.suffix),
            key=blocks.last_used_ns,
        )
        for path in known[:-_KEPT]:
            remove_tree(path)

    async def _booted(self, build: Build, place: Path, timeout_s: float = saved.BOOT_TIMEOUT_S) -> Machine:
        with told("a machine got no device"):
            device = blocks.blank(self.directory)
        machine, ports = await saved.boot(build, memory=place, device=device, lock_fd=self.lock_fd, timeout_s=timeout_s)
        ports.close()
        return machine

    async def _kvm_works(self) -> bool:
        """Whether a machine starts with it: the device alone says little. Found out once for each start of the host."""
        if not os.access(KVM, os.R_OK | os.W_OK):
            return False
        known = await in_thread(self._known)
        if time.time() - known.get("kvm_late_s", 0) < _DOUBT_S:
            return False
        if "kvm" not in known:
            build = Build(self._kernel.image, self._initrd, _PROBE_BYTES, 1, "kvm")
            place = self.own / "probe"
            try:
                await (await self._booted(build, place, _PROBE_S)).end()
                works = True
            except DeadlineExceeded:
                await in_thread(self._note, kvm_late_s=int(time.time()))
                return False
            except SubstrateFailed:
                works = False
            finally:
                place.unlink(missing_ok=True)
            await in_thread(self._note, kvm=int(works))
            return works
        return bool(known["kvm"])

    def _known(self) -> dict[str, int]:
        try:
            known = json.loads((self.directory / f"host-{self._boot}.json").read_text())
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) and all(isinstance(each, int) for each in known.values()) else {}

    def _note(self, **facts: int) -> None:
        path = self.directory / f"host-{self._boot}.json"
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({**self._known(), **facts}))
        draft.rename(path)

    def _sweep(self) -> None:
        """Snapshots of dead processes, and what was saved before the host's last start."""
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
        """Give up what is this process's own. Idempotent."""
        with contextlib.suppress(DutyfreeError):
            await in_thread(remove_tree, self.own)


def _answer(argv: list[str], package: str) -> str:
    try:
        return subprocess.run(argv, capture_output=True, check=True, text=True, timeout=_ASK_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SubstrateUnavailable(f"{argv[0]} does not work: {error}", hint=f"install {package}") from error
