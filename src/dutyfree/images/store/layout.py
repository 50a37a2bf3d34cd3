"""The directories of a store, and the check whether this user may open it.

::

    store.json      version, and whether root or an ordinary user owns the layers
    lock            held for short times, to change names and stages and to prune
    draft.json      the next file of a name or stage, while a process writes it under that lock
    layers/HEX/     one layer: tree/ and layer.json
    names/          one file for each name, with its image
    caches/         one file for each cache, with the layer that is its present version
    stages/         one file for each built stage, with its image; the file's time is the stage's last use
    staging/        unfinished work: a directory and a lock beside it; and garbage, without a lock
    builds/         locks of stages under construction
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from dutyfree.errors import CapacityError, InvalidRequest, SubstrateUnavailable
from dutyfree.images.ownership import Ownership
from dutyfree.images.store import documents, locks
from dutyfree.images.trees.disk import FULL
from dutyfree.places import state_directory

VERSION = 1
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HEX = re.compile(r"[0-9a-f]{64}")
_ELSEWHERE = "DUTYFREE_STATE_DIR names the directory that holds the store"


def default_store() -> Path:
    """The path of this user's store."""
    return state_directory() / "images"


def hex_of(digest: str) -> str:
    """The hexadecimal part of a digest, which is used in file names. Raises InvalidRequest for an invalid digest."""
    if not _DIGEST.fullmatch(digest):
        raise InvalidRequest(
            f"{digest!r} is not a digest", hint="a digest is 'sha256:' and 64 of the digits 0-9 and a-f"
        )
    return digest.removeprefix("sha256:")


def is_hex(name: str) -> bool:
    """Whether a file name is the hexadecimal part of a digest."""
    return _HEX.fullmatch(name) is not None


@contextlib.contextmanager
def wrap_full_disk() -> Iterator[None]:
    """Turn the OSError for a full disk into CapacityError; other errors pass unchanged."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        hint = "`dutyfree image prune` removes what nothing needs"
        raise CapacityError("the disk that holds the image store is full", hint=hint) from error


class Layout:
    """The paths of the store at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.about = root / "store.json"
        self.lock = root / "lock"
        self.draft = root / "draft.json"
        """The path where documents are written before they are published; the lock's holder may overwrite it."""
        self.layers = root / "layers"
        self.names = root / "names"
        self.caches = root / "caches"
        self.stages = root / "stages"
        self.staging = root / "staging"
        self.builds = root / "builds"
        self.directories = (self.layers, self.names, self.caches, self.stages, self.staging, self.builds)

    def prepare(self, ownership: Ownership) -> None:
        """Make missing directories. Raises InvalidRequest if this user may not use the directory as a store,
        SubstrateUnavailable if it cannot be made."""
        try:
            with wrap_full_disk():
                self._make(ownership)
        except OSError as error:
            raise SubstrateUnavailable(f"cannot make the image store: {error}", hint=_ELSEWHERE) from error
        self._check_kind(ownership)

    def _make(self, ownership: Ownership) -> None:
        self.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.root.mkdir(mode=0o700)
        self._check_ours()
        for directory in self.directories:
            directory.mkdir(mode=0o700, exist_ok=True)
        if not self.about.exists():
            self._write_description(ownership)

    def _check_ours(self) -> None:
        info = self.root.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            raise InvalidRequest(f"{str(self.root)!r} is not a directory that this user owns", hint=_ELSEWHERE)
        if info.st_mode & 0o022:
            hint = f"`chmod 700 {self.root}`, if no other user has changed it"
            raise InvalidRequest(f"other users may write to {str(self.root)!r}", hint=hint)

    def _write_description(self, ownership: Ownership) -> None:
        with locks.waiting(self.lock):
            if not self.about.exists():
                documents.publish_document({"version": VERSION, "owner": _kind(ownership)}, self.about, self.draft)

    def _check_kind(self, ownership: Ownership) -> None:
        try:
            about = documents.read(self.about)
        except (documents.Broken, OSError) as error:
            raise InvalidRequest(f"the image store {str(self.root)!r} cannot be opened: {error}") from error
        if about.get("version") != VERSION:
            hint = "another release of Dutyfree made it: use that release, or another directory"
            raise InvalidRequest(f"the image store has version {about.get('version')!r}, not {VERSION}", hint=hint)
        if about.get("owner") != _kind(ownership):
            hint = f"root and ordinary users store files differently; {_ELSEWHERE}"
            made, here = about.get("owner"), _kind(ownership)
            raise InvalidRequest(f"the image store {str(self.root)!r} was made by {made}, not by {here}", hint=hint)


def _kind(ownership: Ownership) -> str:
    return "an ordinary user" if ownership.shift is None else "root"
