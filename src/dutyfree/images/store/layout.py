"""Where everything lies in a store, and who may open it.

::

    store.json      version, and whose files the layers' are
    lock            held for moments: by who changes names and stages, and by who prunes
    draft.json      the next name's or stage's file, while it is being written under that lock
    layers/HEX/     one layer: tree/ and layer.json
    names/          one file for each name, with its image
    stages/         one file for each stage that was built, with its image; its time is that of its last use
    staging/        what is being made: a directory and a lock beside it; and, without one, what is thrown away
    builds/         locks of the stages that are being built
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
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
    """This user's own store."""
    return state_directory() / "images"


def hex_of(digest: str) -> str:
    """The part of a digest that names files. Raises InvalidRequest for what is not a digest."""
    if not _DIGEST.fullmatch(digest):
        raise InvalidRequest(f"{digest!r} is not a digest", hint="it is 'sha256:' and 64 of the digits 0-9 and a-f")
    return digest.removeprefix("sha256:")


def is_hex(name: str) -> bool:
    """Whether a file is named after a digest."""
    return _HEX.fullmatch(name) is not None


@contextlib.contextmanager
def wrap_disk_full() -> Iterator[None]:
    """Turn the kernel's word for a full disk into CapacityError; every other error passes."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        hint = "`dutyfree image prune` removes what nothing needs"
        raise CapacityError("the disk that holds the image store is full", hint=hint) from error


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of the store at `root`."""

    root: Path

    @property
    def about(self) -> Path:
        return self.root / "store.json"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def layers(self) -> Path:
        return self.root / "layers"

    @property
    def names(self) -> Path:
        return self.root / "names"

    @property
    def stages(self) -> Path:
        return self.root / "stages"

    @property
    def staging(self) -> Path:
        return self.root / "staging"

    @property
    def builds(self) -> Path:
        return self.root / "builds"

    @property
    def draft(self) -> Path:
        """Where documents are written before they are moved into place; whoever holds the lock may overwrite it."""
        return self.root / "draft.json"

    @property
    def directories(self) -> tuple[Path, ...]:
        return (self.layers, self.names, self.stages, self.staging, self.builds)

    def prepare(self, ownership: Ownership) -> None:
        """Make what is missing. Raises InvalidRequest for a directory that is not ours to use as a store,
        SubstrateUnavailable where none can be made."""
        try:
            with wrap_disk_full():
                self._make(ownership)
        except OSError as error:
            raise SubstrateUnavailable(f"no place for the image store: {error}", hint=_ELSEWHERE) from error
        self._check_kind(ownership)

    def _make(self, ownership: Ownership) -> None:
        self.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.root.mkdir(mode=0o700)
        self._check_ours()
        for directory in self.directories:
            directory.mkdir(mode=0o700, exist_ok=True)
        if not self.about.exists():
            self._introduce(ownership)

    def _check_ours(self) -> None:
        info = self.root.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            raise InvalidRequest(f"{str(self.root)!r} is not a directory of this user's own", hint=_ELSEWHERE)
        if info.st_mode & 0o022:
            hint = f"`chmod 700 {self.root}`, if nobody has put anything there"
            raise InvalidRequest(f"other users may write to {str(self.root)!r}", hint=hint)

    def _introduce(self, ownership: Ownership) -> None:
        with locks.waiting(self.lock):
            if not self.about.exists():
                documents.publish_document({"version": VERSION, "owner": _kind(ownership)}, self.about, self.draft)

    def _check_kind(self, ownership: Ownership) -> None:
        try:
            about = documents.read(self.about)
        except (documents.Broken, OSError) as error:
            raise InvalidRequest(f"the image store {str(self.root)!r} cannot be opened: {error}") from error
        if about.get("version") != VERSION:
            hint = "it was made by another release of Dutyfree: use that one, or another directory"
            raise InvalidRequest(f"the image store has version {about.get('version')!r}, not {VERSION}", hint=hint)
        if about.get("owner") != _kind(ownership):
            hint = f"files of the two are kept differently; {_ELSEWHERE}"
            made, here = about.get("owner"), _kind(ownership)
            raise InvalidRequest(f"the image store {str(self.root)!r} was made by {made}, not by {here}", hint=hint)


def _kind(ownership: Ownership) -> str:
    return "an ordinary user" if ownership.shift is None else "root"
