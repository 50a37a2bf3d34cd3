"""What a cell's root may edit of the host's installation: which directories, and copies of which files.

A cell's root owns nothing on the host, so that it could not even append a line to its own view of `/etc/hosts`. The
mask layer, which lies over the host's root, therefore repeats directories as its own, and holds copies of files that
common tools edit in place. Only what everyone on the host may read is copied, and only once, when the host is opened
(docs/adr/0012-copies-of-what-tools-edit.md).
"""

from __future__ import annotations

import os
import pwd
import stat
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice

from dutyfree.images.ownership import SUBORDINATE_COUNT


@dataclass(frozen=True, slots=True)
class Tree:
    """Where tools add and replace files: that many levels, and at most that many directories and copies."""

    path: str
    levels: int
    directories: int
    copies: int
    copied: tuple[str, ...] = ("/",)
    """Where in it tools edit files in place."""


TREES = (
    Tree("/etc", 4, 512, 512),
    Tree("/var", 5, 512, 256, ("/var/cache", "/var/lib/apt", "/var/lib/dpkg")),
    Tree("/usr/local", 4, 512, 128),
    Tree("/opt", 4, 256, 128),
    Tree("/srv", 4, 256, 128),
    Tree("/usr", 4, 2048, 0),
)
REPLACED_ONLY = ("/var/lib/dpkg/info", "/var/lib/apt/lists")
"""Many files, which are replaced and never edited."""
STATE = ("/var/lib/dpkg/status", "/var/lib/dpkg/status-old", "/var/lib/dpkg/available", "/var/lib/apt/extended_states")
"""Files that are copied although they may be large."""
MAX_FILE_BYTES = 128 * 1024
MAX_STATE_BYTES = 8 * 1024 * 1024
MAX_BYTES = 32 * 1024 * 1024
MAX_ENTRIES = 100_000
"""How much is looked at: directories of millions of files must not hold up the opening."""

LOCKS = (
    "/etc/.pwd.lock", "/var/lib/dpkg/lock", "/var/lib/dpkg/lock-frontend", "/var/lib/dpkg/triggers/Lock",
    "/var/lib/apt/lists/lock", "/var/cache/apt/archives/lock", "/var/cache/debconf/passwords.dat",
)  # fmt: skip
"""Files that are private on the host, and that tools need: a cell has them empty."""
PRIVATE_DIRECTORIES = ("/var/cache/apt/archives/partial", "/var/lib/apt/lists/partial", "/var/cache/ldconfig")
"""The same of directories."""
MAX_ACCOUNTS = 1024
ONE_USER_APT = (
    "/etc/apt/apt.conf.d/99dutyfree",
    0o644,
    'APT::Sandbox::User "root";\n'
    'Dir::State::lists "/var/lib/apt/lists.cell/";\n'
    'Dir::Cache::archives "/var/cache/apt/archives.cell/";\n',
)
"""Where root is the only user, apt cannot become another one to download, and cannot use what that one owns."""


@dataclass(frozen=True, slots=True)
class Editable:
    """Directories with their modes, each after its parent; files to be copied, with modes and owners of the copies;
    files with modes and texts of their own."""

    directories: tuple[tuple[str, int], ...]
    owned: tuple[tuple[str, int, int], ...]
    """Those directories that do not belong to root, with their modes and owners."""
    copies: tuple[tuple[str, int, int], ...]
    texts: tuple[tuple[str, int, str], ...]


def survey(hidden: Collection[str], *, one_user: bool, trees: tuple[Tree, ...] = TREES) -> Editable:
    """Look at this host. What is in `hidden`, or below, is neither repeated nor copied.

    `one_user`: cells have no user but root.
    """
    finder = _Finder(frozenset(hidden))
    for tree in trees:
        finder.walk(tree)
    texts = [(path, 0o600, "") for path in LOCKS if os.path.lexists(path)]
    # Tools give these files to another group; where there is none, they do without the files.
    texts += [ONE_USER_APT] if one_user else [(path, 0o640, text) for path, text in _shadows().items()]
    texts = [text for text in texts if _parent(text[0]) in finder.directories]
    given = {text[0] for text in texts}
    copies = tuple((path, mode, uid) for path, (mode, uid) in finder.copies.items() if path not in given)
    owned = tuple((path, finder.directories[path], uid) for path, uid in finder.owners.items())
    return Editable(tuple(finder.directories.items()), owned, copies, tuple(texts))


class _Finder:
    """Collects what is open to everyone, the upper levels first."""

    def __init__(self, hidden: frozenset[str]) -> None:
        self._hidden = hidden
        self._left_bytes = MAX_BYTES
        self._left_entries = MAX_ENTRIES
        self._left_copies = 0
        self.directories: dict[str, int] = {}
        self.owners: dict[str, int] = {}
        """Of those directories that do not belong to root."""
        self.copies: dict[str, tuple[int, int]] = {}
        """Modes and owners."""

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
                below = self._look_into(path, copied=copied)
                queue.extend((each, level - 1) for each in sorted(below) if level > 1)

    def _is_open(self, path: str, device: int | None = None) -> bool:
        """Whether everyone may look into a directory; it is then taken note of. What is mounted below may be slow."""
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

    def _look_into(self, path: str, *, copied: bool) -> list[str]:
        """Its directories; its files are taken note of."""
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
            return []  # gone meanwhile
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


def _shadows() -> dict[str, str]:
    """Accounts without passwords: tools want to find an entry for each user, and the host's are nobody's business."""
    names = [user.pw_name for user in pwd.getpwall()[:MAX_ACCOUNTS]]
    return {"/etc/shadow": "".join(f"{name}:!:::::::\n" for name in names), "/etc/gshadow": ""}


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def private_directories(*, one_user: bool) -> Iterator[str]:
    """Those of `PRIVATE_DIRECTORIES` that are here. Cells with one user would need mounts for them, and do without."""
    places = () if one_user else PRIVATE_DIRECTORIES
    return (path for path in places if os.path.isdir(path) and os.path.realpath(path) == path)  # noqa: PTH112 - is no error
