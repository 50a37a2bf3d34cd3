"""Bases of recipes: finds which base a name currently stands for, and puts it into the store."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from dutyfree.errors import InvalidRequest
from dutyfree.images.oci.importing import import_directory, import_layout, import_source, import_tar
from dutyfree.images.oci.layout import Layout
from dutyfree.images.oci.resolving import manifest_digest
from dutyfree.images.ownership import Ownership
from dutyfree.images.recipes import digests, inputs
from dutyfree.images.recipes.debian import DebianRoot
from dutyfree.images.recipes.progress import EventKind, StageProgress
from dutyfree.images.store import Store
from dutyfree.images.trees.pack import pack
from dutyfree.model.image import Image
from dutyfree.threads import exit_in_thread, in_thread, in_thread_with_progress

FETCHED: Final = ("docker://", "docker-daemon:")
MAX_LISTED: Final = 20_000
_DIGEST: Final = re.compile(r"@sha256:[0-9a-f]{64}$")
_TAG: Final = re.compile(r":[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")

_DESCRIPTIONS: Final = ("/etc/os-release", "/var/lib/dpkg/status", "/lib/apk/db/installed")
"""Files that list the host's packages; their content is hashed."""
_DATABASES: Final = ("/usr/lib/sysimage/rpm", "/var/lib/rpm", "/var/lib/pacman/local", "/nix/var/nix/profiles")
"""Directories that list the host's packages but are too big to hash; the times of their entries show changes."""
_OWN_INSTALLATIONS: Final = (
    *("/opt", "/usr/local", "/usr/local/bin", "/usr/local/sbin", "/usr/local/lib", "/usr/local/lib64"),
    *("/usr/local/lib/python3*/dist-packages", "/usr/local/lib/python3*/site-packages", "/usr/local/lib/node_modules"),
)
"""Directories for software that is installed without a package manager."""


@dataclass(frozen=True, slots=True)
class Base:
    """A base in its current state."""

    digest: str
    obtain: Callable[[Store, StageProgress], Awaitable[Image]]
    """Puts the base into the store. Raises as `find` does."""
    ready: Image | None = None
    """The image, if the base already is one."""


async def find(base: str, store: Store) -> Base:
    """The base that a recipe names. The digest of a `debian:` base covers the package names, not their versions.

    Raises InvalidRequest for a missing base, ArchiveRefused for a broken one, and for a base that is fetched also
    SubstrateUnavailable (a tool is missing), DeadlineExceeded and InfraFailed.
    """
    kind, _, rest = base.partition(":")
    match kind:
        case "host":
            return _ready("host", await in_thread(host_identity), Image())
        case "image":
            found = await in_thread(store.find, rest)
            return _ready("image", {"digest": found.digest}, found.image)
        case "dir":
            return await _directory(Path(rest), store)
        case "tar":
            return await _tar(Path(rest))
        case "debian":
            return _debian(DebianRoot.parse(rest))
        case "oci" if rest.startswith(FETCHED):
            return await _fetched(rest)
        case "oci":
            return await _layout(rest)
    raise InvalidRequest(f"{base!r} is not a base")


def _ready(kind: str, identity: dict[str, object], image: Image) -> Base:
    async def obtain(store: Store, report: StageProgress) -> Image:
        return image

    return Base(digests.base_digest(kind, identity), obtain, ready=image)


async def _directory(path: Path, store: Store) -> Base:
    view = Ownership(None if store.ownership.shift is None else 0)

    async def obtain(store: Store, report: StageProgress) -> Image:
        image = await in_thread_with_progress(
            lambda on_bytes: import_directory(store, path, on_bytes=on_bytes), report.bytes
        )
        _check_unchanged(
            path, before, await in_thread_with_progress(lambda on_bytes: _tree_digest(path, view, on_bytes), _ignore)
        )
        return image

    before = await in_thread_with_progress(lambda on_bytes: _tree_digest(path, view, on_bytes), _ignore)
    return Base(digests.base_digest("dir", {"tree": before}), obtain)


def _tree_digest(path: Path, view: Ownership, on_bytes: Callable[[int], None]) -> str:
    if not path.is_dir():
        raise InvalidRequest(f"{str(path)!r} is not a directory")
    try:
        return pack(path, None, view, on_bytes)
    except OSError as error:
        raise InvalidRequest(f"cannot read {str(path)!r}: {error}") from error


async def _tar(path: Path) -> Base:
    async def obtain(store: Store, report: StageProgress) -> Image:
        on_done = partial(report.bytes, total=size_bytes)
        image = await in_thread_with_progress(lambda on_bytes: import_tar(store, path, on_bytes=on_bytes), on_done)
        _check_unchanged(path, before, (await in_thread(_tar_digest, path))[0])
        return image

    before, size_bytes = await in_thread(_tar_digest, path)
    return Base(digests.base_digest("tar", {"sha256": before}), obtain)


def _tar_digest(path: Path) -> tuple[str, int]:
    """The digest of a file's bytes, without decompressing it, and its size."""
    if not path.is_file():
        raise InvalidRequest(f"{str(path)!r} is not a file")
    try:
        return inputs.file_digest(path), path.stat().st_size
    except OSError as error:
        raise InvalidRequest(f"cannot read {str(path)!r}: {error.strerror}") from error


def _check_unchanged(path: Path, before: str, after: str) -> None:
    if before != after:
        raise InvalidRequest(f"{str(path)!r} changed while it was read", hint="build again when it no longer changes")


def _debian(root: DebianRoot) -> Base:
    async def obtain(store: Store, report: StageProgress) -> Image:
        async with exit_in_thread(store.staging()) as directory:
            tar = directory / "root.tar"
            await root.make(tar, on_output=lambda piece: report(EventKind.LOG, piece.decode("utf-8", "replace")))
            return await in_thread_with_progress(
                lambda on_bytes: import_tar(store, tar, on_bytes=on_bytes), report.bytes
            )

    identity = {
        "suite": root.suite,
        "packages": list(root.packages),
        "mirrors": list(root.mirrors),
        "machine": platform.machine(),
    }
    return Base(digests.base_digest("debian", identity), obtain)


async def _fetched(source: str) -> Base:
    digest = await manifest_digest(source)
    # Fetch by digest, because the tag may move in the meantime.
    pinned = f"{_TAG.sub('', _DIGEST.sub('', source))}@{digest}" if source.startswith("docker://") else source

    async def obtain(store: Store, report: StageProgress) -> Image:
        return await in_thread_with_progress(
            lambda on_bytes: import_source(store, pinned, on_bytes=on_bytes), report.bytes
        )

    return Base(digests.base_digest("oci", {"manifest": digest, "machine": platform.machine()}), obtain)


async def _layout(address: str) -> Base:
    path, reference = await in_thread(_layout_address, address)
    found = await in_thread(Layout(path).image, reference)

    async def obtain(store: Store, report: StageProgress) -> Image:
        on_done = partial(report.bytes, total=found.size_bytes)
        return await in_thread_with_progress(
            lambda on_bytes: import_layout(store, path, found.digest, on_bytes=on_bytes), on_done
        )

    return Base(digests.base_digest("oci", {"manifest": found.digest}), obtain)


def _layout_address(address: str) -> tuple[Path, str | None]:
    """Split `PATH`, or `PATH:NAME` for a layout with several images; both may contain colons."""
    words = address.split(":")
    for count in range(len(words), 0, -1):
        path = Path(":".join(words[:count]))
        if path.is_dir():
            return path, ":".join(words[count:]) or None
    return Path(address), None


def host_identity() -> dict[str, object]:
    """Facts that change when the host's installation changes, and differ between hosts; takes milliseconds."""
    return {
        "machine": platform.machine(),
        "descriptions": {name: _sha256(Path(name)) for name in _DESCRIPTIONS},
        "listings": {str(path): _listing(path) for path in _listed_directories()},
    }


def _sha256(path: Path) -> str | None:
    try:
        return inputs.file_digest(path)
    except (OSError, InvalidRequest):
        return None


def _listed_directories() -> Iterator[Path]:
    for pattern in (*_DATABASES, *_OWN_INSTALLATIONS):
        yield from sorted(Path("/").glob(pattern.lstrip("/")))


def _listing(path: Path) -> str:
    """A digest of the names, inodes and times of a directory's entries."""
    whole = hashlib.sha256()
    try:
        with os.scandir(path) as entries:
            for entry in sorted(entries, key=lambda each: each.name)[:MAX_LISTED]:
                info = entry.stat(follow_symlinks=False)
                whole.update(repr((entry.name, info.st_ino, info.st_mtime_ns)).encode("utf-8", "surrogateescape"))
    except OSError as error:
        whole.update(repr(error.errno).encode())
    return whole.hexdigest()


def _ignore(count_bytes: int) -> None:
    """Discard the byte count: hashing a base reports no progress."""
