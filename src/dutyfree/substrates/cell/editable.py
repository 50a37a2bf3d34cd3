"""Finds the directories and files of the host's installation that a cell's root must be able to edit.

A cell's root owns nothing on the host, so it could not even append a line to its own view of `/etc/hosts`. Therefore
the mask layer, which lies over the host's root, has its own directories in the same places, and copies of files that
common tools edit in place. Only files that every user of the host may read are copied, and only once, when the
substrate is opened (docs/adr/0012-copies-of-what-tools-edit.md).
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Collection, Iterable, Iterator

from dutyfree.errors import SubstrateUnavailable
from dutyfree.formatting import plain
from dutyfree.images.ownership import SUBORDINATE_COUNT
from dutyfree.native import spawner_path
from dutyfree.values import dataclass


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree in which tools add and replace files, with bounds: levels, directories, and copies of files."""

    path: str
    levels: int
    directories: int
    copies: int
    copied: tuple[str, ...] = ("/",)
    """The parts of the tree in which tools edit files in place."""


TREES = (
    Tree("/etc", 4, 512, 512),
    Tree("/var", 5, 512, 256, ("/var/cache", "/var/lib/apt", "/var/lib/dpkg")),
    Tree("/usr/local", 4, 512, 128),
    Tree("/opt", 4, 256, 128),
    Tree("/srv", 4, 256, 128),
    Tree("/usr", 4, 2048, 0),
)
REPLACED_ONLY = ("/var/lib/dpkg/info", "/var/lib/apt/lists")
"""Directories with many files, which tools replace and never edit in place."""
STATE = ("/var/lib/dpkg/status", "/var/lib/dpkg/status-old", "/var/lib/dpkg/available", "/var/lib/apt/extended_states")
"""Files that are copied up to `MAX_STATE_BYTES`."""
MAX_FILE_BYTES = 128 * 1024
MAX_STATE_BYTES = 8 * 1024 * 1024
MAX_BYTES = 32 * 1024 * 1024
MAX_ENTRIES = 100_000
"""How many directory entries are read in all: a directory with millions of files must not delay `open`."""
TIMEOUT_S = 60.0

LOCKS = (
    "/etc/.pwd.lock", "/var/lib/dpkg/lock", "/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/triggers/Lock",
    "/var/lib/apt/lists/lock", "/var/cache/apt/archives/lock", "/var/cache/debconf/passwords.dat",
)  # fmt: skip
"""Files that are private on the host but that tools need: in a cell they are empty."""
PRIVATE_DIRECTORIES = ("/var/cache/apt/archives/partial", "/var/lib/apt/lists/partial", "/var/cache/ldconfig")
"""Directories that are private on the host but that tools need: in a cell they are empty."""
MAX_ACCOUNTS = 1024
ONE_USER_APT = (
    "/etc/apt/apt.conf.d/99dutyfree",
    0o644,
    'APT::Sandbox::User "root";\n'
    'Dir::State::lists "/var/lib/apt/lists.cell/";\n'
    'Dir::Cache::archives "/var/cache/apt/archives.cell/";\n',
)
"""For cells with root as the only user: apt cannot switch to its own user, and cannot use that user's directories."""


@dataclass(frozen=True, slots=True)
class Editable:
    """The directories and files that the mask layer has for cells to edit."""

    directories: tuple[tuple[str, int], ...]
    """Paths and modes, each directory after its parent."""
    owned: tuple[tuple[str, int, int], ...]
    """The directories that do not belong to root: paths, modes and owners."""
    copies: tuple[tuple[str, int, int], ...]
    """The files to copy: paths, and the modes and owners of the copies."""
    texts: tuple[tuple[str, int, str], ...]
    """The files that cells have with another content: paths, modes and contents."""


def survey(hidden: Collection[str], *, one_user: bool, trees: tuple[Tree, ...] = TREES) -> Editable:
    """Survey this host. Paths in `hidden`, and all below them, are left out. Raises SubstrateUnavailable.

    `one_user`: cells have no user except root.
    """
    directories, owners, files = _walk(hidden, trees)
    texts = [(path, 0o600, "") for path in LOCKS if os.path.lexists(path)]
    # Tools give the shadow files to another group; in cells without other groups, they work without these files.
    texts += [ONE_USER_APT] if one_user else [(path, 0o640, text) for path, text in _shadow_files().items()]
    texts = [text for text in texts if _parent(text[0]) in directories]
    given = {text[0] for text in texts}
    copies = tuple(file for file in files if file[0] not in given)
    owned = tuple((path, directories[path], uid) for path, uid in owners.items())
    return Editable(tuple(directories.items()), owned, copies, tuple(texts))


def _walk(
    hidden: Collection[str], trees: Iterable[Tree]
) -> tuple[dict[str, int], dict[str, int], list[tuple[str, int, int]]]:
    """Directories with their modes, those that do not belong to root with their owners, and `Editable.copies`.

    Upper levels come first. All of them can be read by every user. A program of ours walks: it is twice as fast, and
    this process can do something else meanwhile.
    """
    words = [MAX_ENTRIES, MAX_BYTES, MAX_FILE_BYTES, MAX_STATE_BYTES]
    request = [*words, *_counted(hidden), *_counted(REPLACED_ONLY), *_counted(STATE)]
    for tree in trees:
        request += [tree.path, tree.levels, tree.directories, tree.copies, *_counted(tree.copied)]
    found = _ask("".join(f"{word}\0" for word in request)).split("\0")
    directories: dict[str, int] = {}
    owners: dict[str, int] = {}
    files: list[tuple[str, int, int]] = []
    for kind, mode, owner, path in zip(found[::4], found[1::4], found[2::4], found[3::4], strict=False):
        uid = int(owner)
        if kind == "F":
            files.append((path, int(mode, 8), uid if uid < SUBORDINATE_COUNT else 0))
            continue
        directories[path] = int(mode, 8)
        if 0 < uid < SUBORDINATE_COUNT:
            owners[path] = uid
    return directories, owners, files


def _counted(paths: Collection[str]) -> list[str | int]:
    return [len(paths), *paths]


def _ask(request: str) -> str:
    """The answer of `dutyfree-spawner --survey`. Raises SubstrateUnavailable."""
    command, given = [str(spawner_path()), "--survey"], request.encode("utf-8", "surrogateescape")
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=TIMEOUT_S, env={}, cwd="/")
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SubstrateUnavailable(f"the files of this machine cannot be looked through: {error}") from error
    if done.returncode != 0:
        raise SubstrateUnavailable(f"the files of this machine cannot be looked through: {plain(done.stderr.decode())}")
    return done.stdout.decode("utf-8", "surrogateescape")


def _shadow_files() -> dict[str, str]:
    """Shadow files without passwords: tools expect an entry for each user, and cells must not see the host's."""
    names = [user.pw_name for user in pwd.getpwall()[:MAX_ACCOUNTS]]
    return {"/etc/shadow": "".join(f"{name}:!:::::::\n" for name in names), "/etc/gshadow": ""}


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def private_directories(*, one_user: bool) -> Iterator[str]:
    """The `PRIVATE_DIRECTORIES` of this host. None for cells with one user, which would need a mount for each."""
    places = () if one_user else PRIVATE_DIRECTORIES
    return (path for path in places if os.path.isdir(path) and os.path.realpath(path) == path)  # noqa: PTH112 - is no error
