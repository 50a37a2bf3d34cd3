"""The host's own root as a base layer: what a cell sees of it, and what is masked.

The base needs no image. It is never written to. A cell's root user stands for an id that owns nothing on the host, so
that whatever only the host's root may read, a cell cannot, masked or not; masks are for what *everyone* may
read but a cell has no business seeing, and for what must be the cell's own.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dutyfree.errors import InvalidRequest
from dutyfree.images.ownership import is_root
from dutyfree.substrates.cell import editable

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
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/dutyfree",
    "/var/lib/kubelet",
    "/var/log",
    "/var/mail",
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
SYSTEM_TREES = ("/bin", "/etc", "/gnu", "/lib", "/lib64", "/nix", "/opt", "/sbin", "/snap", "/srv", "/usr", "/var")
"""Where a separate file system belongs to the host's installation; anywhere else it is data, which cells do not see."""
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
    mounted: tuple[str, ...]
    """What is mounted below `/` (files, too) and not hidden anyway."""
    separate: tuple[str, ...]
    """Those of them that are directories and belong to the host's installation; each comes after its parent."""
    resolv_conf: str
    """How names are resolved, where the host keeps that in a place that is hidden from cells; otherwise empty."""
    name_servers: str
    """How names are resolved, wherever the host keeps that."""
    is_overlay: bool = False
    """Whether the root is an overlay itself, as in a container."""
    owned: tuple[tuple[str, int, int], ...] = ()
    """Those of `repeated` that do not belong to root, with modes and owners."""
    copies: tuple[tuple[str, int, int], ...] = ()
    """Files, with modes and owners of the cells' own copies of them (see `editable`)."""
    texts: tuple[tuple[str, int, str], ...] = ()
    """Files, with modes and contents, that cells have of their own."""


def survey(extra_masks: tuple[str, ...] = ()) -> HostRoot:
    """Look at this host's root. `extra_masks` are files or directories that cells must not see.

    Raises InvalidRequest for an extra mask that is not there: a mask that hides nothing is a mistake.
    """
    for path in extra_masks:
        if not os.path.lexists(path):
            raise InvalidRequest(f"there is nothing at {path!r} to be masked")
    named = [*MASKED_DIRECTORIES, *MASKED_FILES, *OWN_DIRECTORIES, *_homes(), *extra_masks]
    # Both spellings: where a path leads through links, what is at its end must be hidden as well.
    masks = {path for name in named for path in (os.path.realpath(name), name) if os.path.realpath(path) == path}
    masks -= {"/", *OWN_DIRECTORIES}
    directories = {path for path in masks if _is_real_directory(path)}
    files = {path for path in masks - directories if os.path.lexists(path)}
    one_user = not is_root()
    own = OWN_DIRECTORIES | dict.fromkeys(editable.private_directories(one_user=one_user), 0o755)
    hidden = {*directories, *own}
    directories = {path for path in directories if not _is_below(path, hidden - {path})}
    files = {path for path in files if not _is_below(path, hidden)}
    found = editable.survey(hidden | files, one_user=one_user)
    mounted = [path for path in _mount_points() if not _is_below(path, hidden)]
    return HostRoot(
        top_level=tuple(_top_level()),
        own=tuple(own.items()),
        masked_directories=tuple(sorted(path for path in directories if _is_reachable(path))),
        masked_files=tuple(sorted(path for path in files if _is_reachable(path))),
        repeated=_repeated([*own, *directories, *files], hidden, found.directories),
        owned=found.owned,
        copies=found.copies,
        texts=found.texts,
        mounted=tuple(mounted),
        separate=tuple(path for path in mounted if _is_real_directory(path) and _is_below(path, {*SYSTEM_TREES})),
        resolv_conf=_resolv_conf() if Path("/etc/resolv.conf").is_symlink() else "",
        name_servers=_resolv_conf(),
        is_overlay=any(_mount_point(line) == "/" and b" - overlay " in line for line in _mountinfo()),
    )


def _is_below(path: str, directories: dict[str, int] | set[str]) -> bool:
    return any(path == directory or path.startswith(directory + "/") for directory in directories)


def _is_real_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


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


def _top_level() -> Iterator[TopLevel]:
    with os.scandir("/") as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_symlink():
                yield TopLevel(entry.name, 0o777, str(Path(entry.path).readlink()))
            elif entry.is_dir(follow_symlinks=False):
                yield TopLevel(entry.name, stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode))


def _repeated(masks: list[str], hidden: set[str], addable: tuple[tuple[str, int], ...]) -> tuple[tuple[str, int], ...]:
    """Every parent of a mask, however closed the host keeps it, and the directories that a cell may add to."""
    modes: dict[str, int] = {}
    for path in _with_parents([str(Path(path).parent) for path in masks if path.count("/") > 1]):
        if path in modes or _is_below(path, hidden) or os.path.realpath(path) != path or not _is_real_directory(path):
            continue
        modes[path] = stat.S_IMODE(os.lstat(path).st_mode)
    return tuple((modes | dict(addable)).items())


def is_open(mode: int) -> bool:
    """Whether the host lets everyone look into a directory of that mode."""
    return mode & 0o005 == 0o005


def _with_parents(paths: list[str]) -> Iterator[str]:
    for path in paths:
        parents = [str(parent) for parent in Path(path).parents if str(parent) != "/"]
        yield from reversed(parents)
        yield path


def _mount_points() -> list[str]:
    return sorted({_mount_point(line) for line in _mountinfo()} - {"/"})


def _mountinfo() -> list[bytes]:
    return Path("/proc/self/mountinfo").read_bytes().splitlines()


def _mount_point(line: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda found: bytes([int(found[1], 8)]), line.split(b" ")[4]))


def file_systems(paths: Iterable[str]) -> set[bytes]:
    """The file systems that these paths are on. (`st_dev` would tell parts of one btrfs apart.)"""
    mounts = {_mount_point(line): line.split(b" ")[2] for line in _mountinfo()}
    found = set()
    for path in paths:
        parents = [path, *(str(parent) for parent in Path(path).parents)]
        found.add(next(mounts[parent] for parent in parents if parent in mounts))
    return found


def _resolv_conf() -> str:
    path = Path("/etc/resolv.conf")
    try:
        return path.read_text(errors="replace").replace("\0", "")[:4096]
    except OSError:
        return ""


_OCTAL = re.compile(rb"\\([0-7]{3})")
