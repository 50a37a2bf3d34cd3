"""The base disks of machines: our own, built once and kept, or a disk image of the user."""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import shutil
import tarfile
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dutyfree.errors import CapacityError, InvalidRequest, SubstrateFailed, SubstrateUnavailable
from dutyfree.images.commands import CommandFailed, run_command
from dutyfree.images.ownership import is_root
from dutyfree.images.recipes.debian import DebianRoot
from dutyfree.images.store import locks
from dutyfree.removal import remove_tree
from dutyfree.substrates.vm import debian
from dutyfree.substrates.vm.plan import MIB, Kernel
from dutyfree.threads import in_thread

BUILD_TIMEOUT_S: Final = 1800.0
_SEARCH_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_POLL_S: Final = 0.2
_SLACK_BYTES: Final = 16 * MIB
"""Free space for what the machine itself writes while it boots."""
_MAKE_DISK: Final = """set -e
mkdir root
tar -xf packages.tar --numeric-owner -C root
tar -xf ours.tar --numeric-owner -C root
rm -rf root/etc/ssh/ssh_host_* root/boot/* root/vmlinuz* root/initrd* root/var/cache/apt/archives/*.deb
mke2fs -q -t ext4 -m 0 -O ^has_journal -E root_owner=0:0,lazy_itable_init=0 -d root disk.raw "$1"
e2fsck -fy disk.raw > /dev/null || test $? -le 1
resize2fs -M disk.raw 2> /dev/null
rm -r root packages.tar ours.tar
"""


@dataclass(frozen=True, slots=True)
class Base:
    """A base disk, which is never written to, and the kernel to boot if the disk has no boot loader."""

    key: str
    """A name for the disk's content."""
    disk: Path
    format: str
    size_bytes: int
    kernel: Kernel | None
    slack_bytes: int = 0


async def own_base(directory: Path, packages: tuple[str, ...]) -> Base:
    """Our own base, with these packages and the needed ones. Builds it if it does not exist: one to two minutes.

    Raises SubstrateUnavailable if tools are missing, CapacityError if another process takes too long to build it, and
    as `DebianRoot.make` does.
    """
    wanted = tuple(sorted({*debian.NEEDED, *packages}))
    root = DebianRoot.parse("+".join((debian.SUITE, *wanted)))
    key = debian.base_key(wanted, root.mirrors)
    place = directory / f"base-{key}"
    if not place.exists():
        await make_once(place, functools.partial(_build, root), within_s=BUILD_TIMEOUT_S)
    disk = place / "disk.raw"
    kernel = Kernel(place / "vmlinuz", place / "initrd")
    return Base(key, disk, "raw", disk.stat().st_size, kernel, _SLACK_BYTES)


async def users_base(disk: Path) -> Base:
    """A disk image of the user, which has a boot loader, and cloud-init or an equivalent.

    Raises InvalidRequest, also for an image that refers to other files: QEMU would read those files of the host.
    """
    env = {"PATH": _SEARCH_PATH, "LC_ALL": "C"}
    try:
        output = await run_command(["qemu-img", "info", "--output=json", str(disk)], timeout_s=20.0, env=env)
        facts = json.loads(output)
        form, size_bytes = str(facts["format"]), int(facts["virtual-size"])
    except (CommandFailed, KeyError, TypeError, ValueError) as error:
        raise InvalidRequest(f"{str(disk)!r} is not the disk image of a machine: {error}") from error
    if not _stands_alone(facts):
        hint = f"qemu-img convert -O qcow2 {disk} alone.qcow2"
        raise InvalidRequest(f"{str(disk)!r} is not raw or qcow2, or refers to other files", hint=hint)
    return Base(f"{form}-{disk}", disk, form, size_bytes, None)


def _stands_alone(facts: Mapping[str, Any]) -> bool:
    """Whether an image is raw or qcow2, and in a single file; `facts` is the output of `qemu-img info`."""
    if facts["format"] not in ("raw", "qcow2") or "backing-filename" in facts:
        return False
    return "data-file" not in facts.get("format-specific", {}).get("data", {})


async def _wait_for_lock(path: Path, *, within_s: float) -> locks.FileLock:
    """Acquire a lock that another process may hold for the length of a build. Raises CapacityError."""
    deadline_s = time.monotonic() + within_s
    while (lock := locks.attempt(path)) is None:
        if time.monotonic() > deadline_s:
            raise CapacityError(f"another process has held {str(path)!r} for {within_s:g} s")
        await asyncio.sleep(_POLL_S)
    return lock


async def make_once(place: Path, fill: Callable[[Path], Awaitable[None]], *, within_s: float) -> None:
    """Make the directory `place` unless there is one; `fill` fills it under another name. One process at a time.

    Raises CapacityError if another process takes too long, and as `fill` does.
    """
    lock = await _wait_for_lock(place.with_suffix(".lock"), within_s=within_s)
    making = place.with_suffix(".making")
    try:
        if await in_thread(place.exists):
            return
        await in_thread(remove_tree, making)
        making.mkdir(mode=0o700)
        await fill(making)
        making.rename(place)
    finally:
        await asyncio.shield(in_thread(remove_tree, making))
        lock.release(remove=True)


async def _build(root: DebianRoot, making: Path) -> None:
    packages = making / "packages.tar"
    await root.make(packages, timeout_s=BUILD_TIMEOUT_S)
    await in_thread(_take_kernel, packages, making)
    await in_thread(_write_ours, making / "ours.tar")
    size_bytes = packages.stat().st_size * 5 // 4 + 128 * MIB
    env = {"PATH": _SEARCH_PATH, "LC_ALL": "C"}
    # An ordinary user can set the files' owners only in a user namespace.
    unshare = [] if is_root() else ["unshare", "--map-root-user", "--map-auto", "--"]
    within = ["env", "-C", str(making), "sh", "-c", _MAKE_DISK, "sh", f"{size_bytes // MIB}M"]
    if shutil.which("mke2fs", path=_SEARCH_PATH) is None:
        raise SubstrateUnavailable("mke2fs is not installed", hint="Debian: apt-get install e2fsprogs")
    try:
        await run_command([*unshare, *within], timeout_s=BUILD_TIMEOUT_S, env=env)
    except CommandFailed as error:
        raise SubstrateFailed(f"the base disk could not be made: {error}") from error


def _take_kernel(packages: Path, making: Path) -> None:
    """Extract the kernel from the packages, and write an initrd with the modules that it needs."""
    with tarfile.open(packages) as archive:
        members = {member.name.removeprefix("./"): member for member in archive if member.isfile()}

        def content(name: str) -> bytes:
            file = archive.extractfile(members[name])
            assert file is not None
            return file.read()

        found = next(name for name in members if name.startswith("boot/vmlinuz-"))
        modules = next(name for name in members if name.endswith("/modules.dep")).removesuffix("modules.dep")
        order = debian.load_order(debian.MODULES, content(f"{modules}modules.dep").decode())
        busybox = next(name for name in members if name.endswith("bin/busybox"))
        initrd = debian.initrd(content(busybox), [content(f"{modules}{name}") for name in order])
        (making / "vmlinuz").write_bytes(content(found))
        (making / "initrd").write_bytes(initrd)


def _write_ours(target: Path) -> None:
    with tarfile.open(target, "w") as archive:
        for path, (content, mode) in debian.files().items():
            member = _member(path, mode)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for path, aim in debian.links().items():
            member = _member(path, 0o777)
            member.type, member.linkname = tarfile.SYMTYPE, aim
            archive.addfile(member)


def _member(path: str, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(f"./{path}")
    member.mode = mode
    member.mtime = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    return member
