"""The host's own root as a base layer: which parts a cell sees, and which parts are masked.

This base needs no image, and cells never write to it. A cell's root user is mapped to an id that owns nothing on the
host, so a cell cannot read files that only the host's root may read, masked or not. Masks hide files that *every* user
of the host may read but cells should not see, and directories of which each cell needs its own.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from collections.abc import Collection, Iterable, Iterator
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
from dutyfree.values import dataclass

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
"""Directories that are empty and private in every cell."""

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
    """The target of a symlink; None for a directory."""

    @property
    def is_open(self) -> bool:
        """Whether it is a directory that every user may read."""
        return self.link_target is None and is_open(self.mode)


@dataclass(frozen=True, slots=True)
class HostRoot:
    """The facts about this host's root. Paths are absolute and without links; each directory is after its parent."""

    top_level: tuple[TopLevel, ...]
    own: tuple[tuple[str, int], ...]
    masked_directories: tuple[str, ...]
    masked_files: tuple[str, ...]
    repeated: tuple[tuple[str, int], ...]
    """Directories, with modes, that the mask layer has too: all parents of masks, and those that cells may add to."""
    parts: tuple[Part, ...]
    """The parts that each cell gets by a separate mount; each is after its parent."""
    resolv_conf: str
    """The content of /etc/resolv.conf if it is a link, whose target may be hidden from cells; otherwise empty."""
    name_servers: str
    """The content of /etc/resolv.conf."""
    is_overlay: bool = False
    """Whether the host's root is an overlay itself, as in a container."""
    has_keys: bool = False
    """Whether the kernel lists keys in `/proc/keys`."""
    mounted: tuple[str, ...] = ()
    """The mounts in the host's installation, except the kernel's own file systems and what is always masked."""
    absent: tuple[str, ...] = ()
    """The paths in `own` that do not exist on the host."""
    owned: tuple[tuple[str, int, int], ...] = ()
    """The directories in `repeated` that do not belong to root, with modes and owners."""
    copies: tuple[tuple[str, int, int], ...] = ()
    """The files that cells get copies of, with the modes and owners of the copies (see `editable`)."""
    texts: tuple[tuple[str, int, str], ...] = ()
    """The files that cells have with another content, with modes and contents."""

    @property
    def overlaid(self) -> tuple[Part, ...]:
        """The parts that a cell can write to."""
        return tuple(part for part in self.parts if part.is_overlaid)

    @property
    def as_it_is(self) -> tuple[Part, ...]:
        """The parts that a cell sees read-only."""
        return tuple(part for part in self.parts if part.showing is Showing.READ_ONLY)


@dataclass(frozen=True, slots=True)
class _Beginning:
    """A survey that waits for its walk through the host's files."""

    mounted: tuple[mounts.Mount, ...]
    masks_of_ours: list[str]
    directories: set[str]
    files: set[str]
    own: dict[str, int]
    remote: list[str]
    walk: editable.Walk


_begun: dict[tuple[tuple[str, ...], bool], _Beginning] = {}


def begin(extra_masks: tuple[str, ...] = (), *, rootless: bool = False) -> None:
    """Begin what `survey` with the same arguments waits for, so that it waits less."""
    _begun[extra_masks, rootless] = _begin(extra_masks, rootless)


def survey(extra_masks: tuple[str, ...] = (), *, rootless: bool = False) -> HostRoot:
    """Survey this host's root. `extra_masks` are files or directories that cells must not see.

    Raises InvalidRequest if an extra mask does not exist: a mask that hides nothing is a mistake.
    """
    begun = _begun.pop((extra_masks, rootless), None) or _begin(extra_masks, rootless)
    mounted, directories, files, own = begun.mounted, begun.directories, begun.files, begun.own
    hidden = {*directories, *own}
    found = editable.survey(begun.walk, one_user=rootless)
    top_level = tuple(_top_level(begun.remote))
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
            mount.path for mount in of_installation(mounted, begun.masks_of_ours) if mount.kind not in KERNEL_KINDS
        ),
        resolv_conf=_resolv_conf() if Path("/etc/resolv.conf").is_symlink() else "",
        name_servers=_resolv_conf(),
        is_overlay=any(mount.path == "/" and mount.kind == "overlay" for mount in mounted),
        absent=tuple(path for path in own if not _is_real_directory(path)),
        has_keys=Path("/proc/keys").exists(),
    )


def _begin(extra_masks: tuple[str, ...], rootless: bool) -> _Beginning:
    mounted = mounts.read()
    for path in extra_masks:
        if not os.path.lexists(path):
            raise InvalidRequest(f"the mask {path!r} does not exist on this host")
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ or Path("/var/run/secrets/kubernetes.io").exists()
    masks_of_ours = [*MASKED_DIRECTORIES, *MASKED_FILES, *OWN_DIRECTORIES, *_homes(), *_core_dumps(), *extra_masks]
    closed = [*not_for_cells(mounted, in_pod=in_pod), *_mounted_sockets(mounted)]
    named = [*masks_of_ours, *closed]
    # Both the path and its resolved form: if a path contains links, their target must be hidden as well.
    masks = {path for name in named for path in (os.path.realpath(name), name) if os.path.realpath(path) == path}
    masks -= {"/", *OWN_DIRECTORIES}
    directories = {path for path in masks if _is_real_directory(path)}
    files = {path for path in masks - directories if os.path.lexists(path)}
    own = OWN_DIRECTORIES | dict.fromkeys(editable.private_directories(one_user=rootless), 0o755)
    hidden = {*directories, *own}
    directories = {path for path in directories if not is_below(path, hidden - {path})}
    files = {path for path in files if not is_below(path, hidden)}
    remote = [mount.path for mount in mounted if is_remote(mount.kind)]
    walk = editable.Walk({*hidden, *files, *remote})
    return _Beginning(mounted, masks_of_ours, directories, files, own, remote, walk)


def seen_directories(
    top_level: Iterable[TopLevel], hidden: Collection[str], mounted: Iterable[mounts.Mount]
) -> list[tuple[str, int]]:
    """The directories of `/` that a rootless cell sees. A directory with data mounted below it is hidden completely."""
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
    """Mounted sockets of services, such as a container engine's: even on a read-only mount, a process can connect."""
    places = (mount.path for mount in mounted if is_below(mount.path, SYSTEM_TREES) and not is_remote(mount.kind))
    return [path for path in places if stat.S_ISSOCK(_mode_of(path) or 0)]


def _is_reachable(path: str) -> bool:
    """Whether this user can reach the path. Cells cannot reach more than their user."""
    return os.access(str(Path(path).parent), os.X_OK)


def _homes() -> Iterator[str]:
    """The home directories of login users of this host, and of the user of this process."""
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
    """The directory for the kernel's core dumps, if it has no other use (so not `/` or `/var` itself)."""
    if not pattern.startswith("/"):
        return []  # core dumps go to the process's working directory, or to a program
    path = pattern.strip().split("%", 1)[0].rpartition("/")[0]
    shared = {*SYSTEM_TREES, *(tree.path for tree in editable.TREES), "/usr/bin", "/usr/lib", "/usr/share", "/var/lib"}
    return [path] if path and path not in shared else []


def _top_level(remote: Collection[str]) -> Iterator[TopLevel]:
    found = look("/", remote) or Listing()
    yield from (TopLevel(name, 0o777, target) for name, target in found.links)
    yield from (TopLevel(name, mode) for name, mode in found.directories)


def _repeated(masks: list[str], hidden: set[str], addable: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """All parents of masks, whatever their modes, and the directories that a cell may add files to."""
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
