"""The host's own root as a base layer: what a cell sees of it, and what is masked.

The base needs no image. It is never written to. A cell's root user stands for an id that owns nothing on the host, so
that whatever only the host's root may read, a cell cannot, masked or not; masks are for what *everyone* may
read but a cell has no business seeing, and for what must be the cell's own.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dutyfree.errors import InvalidRequest
from dutyfree.substrates.cell import editable, mounts
from dutyfree.substrates.cell.parts import (
    KERNEL_KINDS,
    SYSTEM_TREES,
    Listing,
    Part,
    Showing,
    for_root,
    for_user,
    is_below,
    is_open,
    is_remote,
    look,
    not_for_cells,
    of_installation,
)

OWN_DIRECTORIES: dict[str, int] = {
    "/dev": 0o755,
    "/home": 0o755,
    "/proc": 0o555,
    "/root": 0o700,
    "/run": 0o755,
    "/sys": 0o555,
    "/tmp": 0o1777,
    "/var/tmp": 0o1777,
}
"""Directories that every cell has empty and for itself."""

MASKED_DIRECTORIES = (
    "/boot",
    "/lost+found",
    "/media",
    "/mnt",
    "/etc/docker",
    "/etc/kubernetes",
    "/etc/NetworkManager",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/sudoers.d",
    "/etc/wireguard",
    "/var/backups",
    "/var/crash",
    "/var/lib/apport",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/dutyfree",
    "/var/lib/kubelet",
    "/var/lib/systemd/coredump",
    "/var/log",
    "/var/mail",
    "/var/run",
    "/var/spool",
)
MASKED_FILES = (
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/krb5.keytab",
    "/etc/machine-id",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/sudoers",
    "/var/lib/dbus/machine-id",
)
LEAST_LOGIN_UID = 1000


@dataclass(frozen=True, slots=True)
class TopLevel:
    """An entry of the host's `/`."""

    name: str
    mode: int
    link_target: str | None = None
    """For a symlink, where it leads."""

    @property
    def is_open(self) -> bool:
        """Whether it is a directory that the host opens to everyone."""
        return self.link_target is None and is_open(self.mode)


@dataclass(frozen=True, slots=True)
class HostRoot:
    """What there is on this host. Paths are absolute and free of links; each directory comes after its parent."""

    top_level: tuple[TopLevel, ...]
    own: tuple[tuple[str, int], ...]
    masked_directories: tuple[str, ...]
    masked_files: tuple[str, ...]
    repeated: tuple[tuple[str, int], ...]
    """Directories, with their modes, that the mask layer repeats: all parents of masks, and those open to additions."""
    parts: tuple[Part, ...]
    """What each cell gets by a mount of its own; each comes after its parent."""
    resolv_conf: str
    """How names are resolved, where the host keeps that in a place that is hidden from cells; otherwise empty."""
    name_servers: str
    """How names are resolved, wherever the host keeps that."""
    is_overlay: bool = False
    """Whether the root is an overlay itself, as in a container."""
    has_keys: bool = False
    """Whether the kernel lists keys in `/proc/keys`."""
    mounted: tuple[str, ...] = ()
    """What is mounted in the host's installation, but for the kernel's own file systems and what is always masked."""
    absent: tuple[str, ...] = ()
    """Those of `own` that the host has not got."""
    owned: tuple[tuple[str, int, int], ...] = ()
    """Those of `repeated` that do not belong to root, with modes and owners."""
    copies: tuple[tuple[str, int, int], ...] = ()
    """Files, with modes and owners of the cells' own copies of them (see `editable`)."""
    texts: tuple[tuple[str, int, str], ...] = ()
    """Files, with modes and contents, that cells have of their own."""

    @property
    def overlaid(self) -> tuple[Part, ...]:
        """The parts in which a cell can write."""
        return tuple(part for part in self.parts if part.is_overlaid)

    @property
    def as_it_is(self) -> tuple[Part, ...]:
        """The parts that a cell sees read-only."""
        return tuple(part for part in self.parts if part.showing is Showing.READ_ONLY)


def survey(extra_masks: tuple[str, ...] = (), *, rootless: bool = False) -> HostRoot:
    """Look at this host's root. `extra_masks` are files or directories that cells must not see.

    Raises InvalidRequest for an extra mask that is not there: a mask that hides nothing is a mistake.
    """
    mounted = mounts.read()
    for path in extra_masks:
        if not os.path.lexists(path):
            raise InvalidRequest(f"there is nothing at {path!r} to be masked")
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ or Path("/var/run/secrets/kubernetes.io").exists()
    masks_of_ours = [*MASKED_DIRECTORIES, *MASKED_FILES, *OWN_DIRECTORIES, *_homes(), *_core_dumps(), *extra_masks]
    closed = [*not_for_cells(mounted, in_pod=in_pod), *_mounted_sockets(mounted)]
    named = [*masks_of_ours, *closed]
    # Both spellings: where a path leads through links, what is at its end must be hidden as well.
    masks = {path for name in named for path in (os.path.realpath(name), name) if os.path.realpath(path) == path}
    masks -= {"/", *OWN_DIRECTORIES}
    directories = {path for path in masks if _is_real_directory(path)}
    files = {path for path in masks - directories if os.path.lexists(path)}
    own = OWN_DIRECTORIES | dict.fromkeys(editable.private_directories(one_user=rootless), 0o755)
    hidden = {*directories, *own}
    directories = {path for path in directories if not is_below(path, hidden - {path})}
    files = {path for path in files if not is_below(path, hidden)}
    remote = [mount.path for mount in mounted if is_remote(mount.kind)]
    found = editable.survey({*hidden, *files, *remote}, one_user=rootless)
    top_level = tuple(_top_level(remote))
    if rootless:
        parts = for_user(seen_directories(top_level, hidden, mounted), of_installation(mounted, hidden), hidden)
    else:
        given = {path for path, _mode, _text in found.texts}
        parts = for_root(of_installation(mounted, {*hidden, *files, *given}), _mode_of)
    return HostRoot(
        top_level=top_level,
        own=tuple(own.items()),
        masked_directories=tuple(sorted(path for path in directories if _is_reachable(path))),
        masked_files=tuple(sorted(path for path in files if _is_reachable(path))),
        repeated=_repeated([*own, *directories, *files], hidden, found.directories),
        owned=found.owned,
        copies=found.copies,
        texts=found.texts,
        parts=parts,
        mounted=tuple(
            mount.path for mount in of_installation(mounted, masks_of_ours) if mount.kind not in KERNEL_KINDS
        ),
        resolv_conf=_resolv_conf() if Path("/etc/resolv.conf").is_symlink() else "",
        name_servers=_resolv_conf(),
        is_overlay=any(mount.path == "/" and mount.kind == "overlay" for mount in mounted),
        absent=tuple(path for path in own if not _is_real_directory(path)),
        has_keys=Path("/proc/keys").exists(),
    )


def seen_directories(
    top_level: Iterable[TopLevel], hidden: Collection[str], mounted: Iterable[mounts.Mount]
) -> list[tuple[str, int]]:
    """The directories of `/` that a rootless cell sees; data that is mounted below one hides the whole of it."""
    data = [mount.path for mount in mounted if not is_below(mount.path, SYSTEM_TREES)]
    seen = [(f"/{entry.name}", entry.mode) for entry in top_level if entry.is_open and f"/{entry.name}" not in hidden]
    return [(path, mode) for path, mode in seen if not any(is_below(each, [path]) for each in data)]


def _is_real_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def _mode_of(path: str) -> int | None:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return None


def _mounted_sockets(mounted: Iterable[mounts.Mount]) -> list[str]:
    """Sockets of services, a container engine's for instance: whoever reaches one may speak to it, also read-only."""
    places = (mount.path for mount in mounted if is_below(mount.path, SYSTEM_TREES) and not is_remote(mount.kind))
    return [path for path in places if stat.S_ISSOCK(_mode_of(path) or 0)]


def _is_reachable(path: str) -> bool:
    """Whether this user could get there at all; what even it cannot reach, its cells cannot either."""
    return os.access(str(Path(path).parent), os.X_OK)


def _homes() -> Iterator[str]:
    """Home directories of the people who log in here, wherever they are, and of whoever runs this."""
    users = [user for user in pwd.getpwall() if user.pw_uid >= LEAST_LOGIN_UID]
    names = [os.environ.get("SUDO_USER", "")]
    with contextlib.suppress(KeyError):
        users.append(pwd.getpwuid(os.geteuid()))
    for name in names:
        with contextlib.suppress(KeyError):
            users.append(pwd.getpwnam(name))
    for home in {*(user.pw_dir for user in users), os.environ.get("HOME", "")}:
        if home.startswith("/") and home.rstrip("/") not in ("", "/nonexistent", "/usr", "/var", "/etc", "/bin"):
            yield home.rstrip("/")


def _core_dumps() -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from core_directories(Path("/proc/sys/kernel/core_pattern").read_text())


def core_directories(pattern: str) -> list[str]:
    """Where the kernel leaves core dumps, if that is a directory for nothing else (not `/` or `/var` itself)."""
    if not pattern.startswith("/"):
        return []  # the working directory of the process, or a program
    path = pattern.strip().split("%", 1)[0].rpartition("/")[0]
    shared = {*SYSTEM_TREES, *(tree.path for tree in editable.TREES), "/usr/bin", "/usr/lib", "/usr/share", "/var/lib"}
    return [path] if path and path not in shared else []


def _top_level(remote: Collection[str]) -> Iterator[TopLevel]:
    found = look("/", remote) or Listing()
    yield from (TopLevel(name, 0o777, target) for name, target in found.links)
    yield from (TopLevel(name, mode) for name, mode in found.directories)


def _repeated(masks: list[str], hidden: set[str], addable: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Every parent of a mask, however closed the host keeps it, and the directories that a cell may add to."""
    modes: dict[str, int] = {}
    for path in _with_parents([str(Path(path).parent) for path in masks if path.count("/") > 1]):
        if path in modes or is_below(path, hidden) or os.path.realpath(path) != path or not _is_real_directory(path):
            continue
        modes[path] = stat.S_IMODE(os.lstat(path).st_mode)
    return tuple((modes | dict(addable)).items())


def _with_parents(paths: list[str]) -> Iterator[str]:
    for path in paths:
        parents = [str(parent) for parent in Path(path).parents if str(parent) != "/"]
        yield from reversed(parents)
        yield path


def _resolv_conf() -> str:
    path = Path("/etc/resolv.conf")
    try:
        return path.read_text(errors="replace").replace("\0", "")[:4096]
    except OSError:
        return ""
