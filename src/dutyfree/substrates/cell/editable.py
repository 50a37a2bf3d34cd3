"""Finds the directories and files of the host's installation that a cell's root must be able to edit.

A cell's root owns nothing on the host, so it could not even append a line to its own view of `/etc/hosts`. Therefore
the mask layer, which lies over the host's root, has its own directories in the same places, and copies of files that
common tools edit in place. Only files that every user of the host may read are copied, and only once, when the
substrate is opened (docs/adr/0012-copies-of-what-tools-edit.md).
"""

from __future__ import annotations

import os
import pwd
import stat
from collections import deque
from collections.abc import Collection, Iterator
from itertools import islice

from dutyfree.images.ownership import SUBORDINATE_COUNT
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
    """Survey this host. Paths in `hidden`, and all below them, are left out.

    `one_user`: cells have no user except root.
    """
    finder = _Finder(frozenset(hidden))
    for tree in trees:
        finder.walk(tree)
    texts = [(path, 0o600, "") for path in LOCKS if os.path.lexists(path)]
    # Tools give the shadow files to another group; in cells without other groups, they work without these files.
    texts += [ONE_USER_APT] if one_user else [(path, 0o640, text) for path, text in _shadow_files().items()]
    texts = [text for text in texts if _parent(text[0]) in finder.directories]
    given = {text[0] for text in texts}
    copies = tuple((path, mode, uid) for path, (mode, uid) in finder.copies.items() if path not in given)
    owned = tuple((path, finder.directories[path], uid) for path, uid in finder.owners.items())
    return Editable(tuple(finder.directories.items()), owned, copies, tuple(texts))


class _Finder:
    """Collects directories and files that every user may read, upper levels first."""

    def __init__(self, hidden: frozenset[str]) -> None:
        self._hidden = hidden
        self._left_bytes = MAX_BYTES
        self._left_entries = MAX_ENTRIES
        self._left_copies = 0
        self.directories: dict[str, int] = {}
        self.owners: dict[str, int] = {}
        """The owners of directories that do not belong to root."""
        self.copies: dict[str, tuple[int, int]] = {}
        """The modes and owners of the files to copy."""

    def walk(self, tree: Tree) -> None:
        if not (self._is_open(_parent(tree.path)) and self._is_open(tree.path)):
            return
        device = os.lstat(tree.path).st_dev
        queue, left = deque([(tree.path, tree.levels)]), tree.directories
        self._left_copies = tree.copies
        while queue and left > 0:
            path, level = queue.popleft()
            if not self._is_open(path, device):
                continue
            left -= 1
            copied = self._left_copies > 0 and path.startswith(tree.copied) and not path.startswith(REPLACED_ONLY)
            if level > 1 or copied:
                below = self._scan(path, copied=copied)
                queue.extend((each, level - 1) for each in sorted(below) if level > 1)

    def _is_open(self, path: str, device: int | None = None) -> bool:
        """Whether every user may read a directory; it is then recorded. Mounts below are left out: they may be slow."""
        if path in self.directories or path == "":
            return True
        if path in self._hidden:
            return False
        try:
            found = os.lstat(path)
        except OSError:
            return False
        if not stat.S_ISDIR(found.st_mode) or found.st_mode & 0o005 != 0o005 or device not in (None, found.st_dev):
            return False
        self.directories[path] = stat.S_IMODE(found.st_mode)
        if 0 < found.st_uid < SUBORDINATE_COUNT:
            self.owners[path] = found.st_uid
        return True

    def _scan(self, path: str, *, copied: bool) -> list[str]:
        """Record the files of a directory, and return its directories."""
        below = []
        try:
            with os.scandir(path) as entries:
                for entry in islice(entries, self._left_entries):
                    self._left_entries -= 1
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.path)
                    elif copied and entry.is_file(follow_symlinks=False) and entry.path not in self._hidden:
                        self._copy(entry)
        except OSError:
            return []  # it was removed meanwhile
        return below

    def _copy(self, entry: os.DirEntry[str]) -> None:
        if self._left_copies == 0 or entry.path in self.copies:
            return
        try:
            found = entry.stat(follow_symlinks=False)
        except OSError:
            return
        most = MAX_STATE_BYTES if entry.path in STATE else MAX_FILE_BYTES
        if found.st_mode & 0o004 and found.st_size <= min(most, self._left_bytes):
            self._left_bytes -= found.st_size
            self._left_copies -= 1
            uid = found.st_uid if found.st_uid < SUBORDINATE_COUNT else 0
            self.copies[entry.path] = (stat.S_IMODE(found.st_mode) & 0o777, uid)


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
