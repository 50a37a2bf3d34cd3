"""Finds the directories and files of the host's installation that a cell's root must be able to edit.

A cell's root owns nothing on the host, so it could not even append a line to its own view of `/etc/hosts`. Therefore
the mask layer, which lies over the host's root, has its own directories in the same places, and copies of files that
common tools edit in place. Only files that every user of the host may read are copied, and only once, when the
substrate is opened (docs/adr/0012-copies-of-what-tools-edit.md).
"""

from __future__ import annotations

import contextlib
import fcntl
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
PIPE_BYTES = 1 << 20
"""Room for all that is found, so that the program ends without a reader."""

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


class Walk:
    """A walk through this host's files, by a program of ours: meanwhile, this process can do something else.

    Finds what every user may read, upper levels first. Paths in `hidden`, and all below them, are left out. Raises
    SubstrateUnavailable.
    """

    def __init__(self, hidden: Collection[str], trees: Iterable[Tree] = TREES) -> None:
        request: list[str | int] = [MAX_ENTRIES, MAX_BYTES, MAX_FILE_BYTES, MAX_STATE_BYTES]
        request += [*_counted(hidden), *_counted(REPLACED_ONLY), *_counted(STATE)]
        for tree in trees:
            request += [tree.path, tree.levels, tree.directories, tree.copies, *_counted(tree.copied)]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                [str(spawner_path()), "--survey"],
                stdin=pipe, stdout=pipe, stderr=pipe, env={}, cwd="/",
            )  # fmt: skip
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            with contextlib.suppress(OSError):  # an ordinary user with many pipes may not enlarge one
                fcntl.fcntl(self._process.stdout, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
            with contextlib.suppress(BrokenPipeError), self._process.stdin as given:
                given.write("".join(f"{word}\0" for word in request).encode("utf-8", "surrogateescape"))
            self._process.stdin = None
        except OSError as error:
            raise _unavailable(error) from error

    def found(self) -> tuple[dict[str, int], dict[str, int], list[tuple[str, int, int]]]:
        """Waits. Directories with modes, those that do not belong to root with owners, and `Editable.copies`."""
        directories: dict[str, int] = {}
        owners: dict[str, int] = {}
        files: list[tuple[str, int, int]] = []
        words = iter(self._answer().split("\0"))
        for kind, mode, owner, path in zip(words, words, words, words, strict=False):
            uid = int(owner)
            if kind == "F":
                files.append((path, int(mode, 8), uid if uid < SUBORDINATE_COUNT else 0))
                continue
            directories[path] = int(mode, 8)
            if 0 < uid < SUBORDINATE_COUNT:
                owners[path] = uid
        return directories, owners, files

    def _answer(self) -> str:
        try:
            answer, complaint = self._process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.communicate()
            raise _unavailable(error) from error
        if self._process.returncode != 0:
            raise _unavailable(plain(complaint.decode("utf-8", "replace")))
        return answer.decode("utf-8", "surrogateescape")


def survey(walk: Walk, *, one_user: bool) -> Editable:
    """What the walk found, with the files that cells have of their own. Raises SubstrateUnavailable.

    `one_user`: cells have no user except root.
    """
    directories, owners, files = walk.found()
    texts = [(path, 0o600, "") for path in LOCKS if os.path.lexists(path)]
    # Tools give the shadow files to another group; in cells without other groups, they work without these files.
    texts += [ONE_USER_APT] if one_user else [(path, 0o640, text) for path, text in _shadow_files().items()]
    texts = [text for text in texts if _parent(text[0]) in directories]
    given = {text[0] for text in texts}
    copies = tuple(file for file in files if file[0] not in given)
    owned = tuple((path, directories[path], uid) for path, uid in owners.items())
    return Editable(tuple(directories.items()), owned, copies, tuple(texts))


def _counted(paths: Collection[str]) -> list[str | int]:
    return [len(paths), *paths]


def _unavailable(why: object) -> SubstrateUnavailable:
    return SubstrateUnavailable(f"the files of this machine cannot be looked through: {why}")


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
