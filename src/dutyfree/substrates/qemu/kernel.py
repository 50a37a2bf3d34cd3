"""Finds the kernel that machines boot, and the modules that they need."""

from __future__ import annotations

import lzma
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.errors import SubstrateUnavailable

VARIABLE: Final = "DUTYFREE_KERNEL"
NEEDED: Final = ("virtio_mmio", "virtio_blk", "virtio_console", "squashfs", "overlay")
_DEPENDS: Final = re.compile(rb"\0depends=([^\0]*)\0")
_MAX_MODULE_BYTES: Final = 64 * 1024**2
_HINT: Final = (
    f"let {VARIABLE} name a directory that has boot/vmlinuz-* and lib/modules/*: unpack Debian's "
    "linux-image-*-cloud-amd64 there (apt-get download, dpkg -x); it need not be installed"
)


@dataclass(frozen=True, slots=True)
class Kernel:
    """A bootable image and the directory of its modules."""

    image: Path
    modules: Path

    @property
    def release(self) -> str:
        """The kernel's release, such as `6.1.0-18-cloud-amd64`."""
        return self.modules.name


def find_kernel(root: Path | str | None = None) -> Kernel:
    """The newest readable kernel below `root`, else below $DUTYFREE_KERNEL, else below /.

    Raises SubstrateUnavailable if there is none.
    """
    place = Path(root or os.environ.get(VARIABLE) or "/")
    found = []
    for image in place.glob("boot/vmlinuz-*"):
        for modules in (place / "lib/modules", place / "usr/lib/modules"):
            release = modules / image.name.removeprefix("vmlinuz-")
            if release.is_dir() and os.access(image, os.R_OK):
                found.append(Kernel(image.absolute(), release.absolute()))
    if not found:
        raise SubstrateUnavailable(f"there is no kernel for machines below {str(place)!r}", hint=_HINT)
    return max(found, key=lambda kernel: _version(kernel.release))


def load_modules(kernel: Kernel, needed: Iterable[str] = NEEDED) -> list[bytes]:
    """The needed modules that are not built in, and their dependencies, in load order.

    Raises SubstrateUnavailable if the kernel lacks a module.
    """
    files = {_plain(path): path for path in kernel.modules.rglob("*.ko*")}
    built_in = {_plain(Path(line)) for line in _lines(kernel.modules / "modules.builtin")}

    def content(name: str) -> bytes | None:
        if name in built_in:
            return None
        if name not in files:
            raise SubstrateUnavailable(f"kernel {kernel.release} has no module {name!r}", hint=_HINT)
        return _unpacked(files[name])

    return in_load_order(needed, content)


def in_load_order(needed: Iterable[str], content: Callable[[str], bytes | None]) -> list[bytes]:
    """The modules, each after its dependencies; `content` returns None for a module that is built in."""
    order: dict[str, bytes] = {}
    visiting: set[str] = set()

    def visit(name: str) -> None:
        if name in order or name in visiting:
            return
        visiting.add(name)
        data = content(name)
        if data is None:
            return
        for other in dependencies(data):
            visit(other)
        order[name] = data

    for name in needed:
        visit(name)
    return list(order.values())


def dependencies(module: bytes) -> list[str]:
    """The names of the modules that `module` lists as its dependencies (the `depends=` field of .modinfo)."""
    found = _DEPENDS.search(module)
    names = found[1].decode("ascii", "replace").split(",") if found else []
    return [name.replace("-", "_") for name in names if name]


def _unpacked(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.LZMADecompressor().decompress(data, _MAX_MODULE_BYTES)
    if path.suffix == ".ko":
        return data
    raise SubstrateUnavailable(f"kernel modules packed as {path.suffix!r} cannot be read", hint=_HINT)


def _plain(path: Path) -> str:
    return path.name.partition(".ko")[0].replace("-", "_")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _version(release: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", release)]
