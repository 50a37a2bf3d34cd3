"""Materials: files that workloads need on this machine. They are made once and kept, and then work offline.

A stage of a workload names a material in place of a file: `source = "material:attrs.bundle"`. There are

=================  ====================================================================================
`attrs.bundle`     the git history of attrs that T1 and T2 clone (see `attrs_history`)
`wheels`           a directory of wheels: pytest and all that it needs
=================  ====================================================================================
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from dutyfree.errors import CapacityError, InvalidRequest, SubstrateUnavailable
from dutyfree.images.store import locks
from dutyfree.images.trees.disk import FULL
from dutyfree.measure.workloads import attrs_history
from dutyfree.measure.workloads.fetching import Pinned, fetch
from dutyfree.measure.workloads.workload import Workload
from dutyfree.model import FileInput, Stage
from dutyfree.places import state_directory

MARK: Final = "material:"
NAMES: Final = ("attrs.bundle", "wheels")
ATTRS: Final = Pinned(
    "attrs", "25.3.0", "75d7cefc7fb576747b2c81b4442d4d4a1ce0900973527c011d1030fd3bf4af1b", backend="hatchling.build"
)
# The last pytest that does not need Pygments: that alone is four times as many files as all of these together.
WHEELS: Final = (
    Pinned("pytest", "8.3.5", "c69214aa47deac29fad6c2a4f590b9c4a9fdb16a403176fe154b79c0b4d4d820"),
    Pinned("iniconfig", "2.1.0", "9deba5723312380e77435581c6bf4935c94cbfab9b1ed33ef8d238ea168eb760"),
    Pinned("packaging", "25.0", "29572ef2b1f17581046b3a2227d5c611fb25ec70ca1ba8554b24b0e69331a484"),
    Pinned("pluggy", "1.6.0", "e920276dd6813095e9377c0bc5566d94c932c33b27a3e3945d8389c374dd4746"),
)
EDITION: Final = "attrs-25.3.0-1"
"""The directory's name. Its number is increased when the content changes, so that old content is not used."""
_DRAFT: Final = "draft-"
_BUSY_S: Final = 600.0

Progress = Callable[[str], None]


def default_directory() -> Path:
    """The default directory of materials; `DUTYFREE_STATE_DIR` moves it."""
    return state_directory() / "materials"


def needed(workload: Workload) -> frozenset[str]:
    """The names of the materials that its stages use. Raises InvalidRequest for an unknown one."""
    sources = (given.source for stage in workload.stages for given in stage.files)
    names = frozenset(source.removeprefix(MARK) for source in sources if source.startswith(MARK))
    for name in names - set(NAMES):
        raise InvalidRequest(f"workload {workload.name!r}: there is no material {name!r}", hint=f"use {list(NAMES)}")
    return names


def prepare(workload: Workload, directory: Path | None = None, on_progress: Progress = lambda _: None) -> Workload:
    """The workload with paths in place of materials, which are made if they are not in `directory` yet.

    Any number of processes may do this at once; one of them makes them. A maker that is killed leaves nothing that is
    taken for a material. Raises InvalidRequest for a material that there is not, InfraFailed (no index in reach),
    SubstrateUnavailable (no git, no pip, no place), CapacityError (others were at it for too long, or a full disk).
    """
    if not needed(workload):
        return workload
    kept = _kept(directory or default_directory(), on_progress)
    return replace(workload, stages=tuple(_located(stage, kept) for stage in workload.stages))


def _located(stage: Stage, kept: Path) -> Stage:
    return replace(stage, files=tuple(_real(given, kept) for given in stage.files))


def _real(given: FileInput, kept: Path) -> FileInput:
    if not given.source.startswith(MARK):
        return given
    return replace(given, source=str(kept / given.source.removeprefix(MARK)))


def _kept(directory: Path, on_progress: Progress) -> Path:
    """The directory with all materials; it is published atomically."""
    kept = directory.absolute() / EDITION
    if kept.is_dir():
        return kept
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locks.waiting(directory / "lock", timeout_s=_BUSY_S, what="the directory of materials"):
            if not kept.is_dir():
                _make(directory, kept, on_progress)
    except OSError as error:
        hint = "DUTYFREE_STATE_DIR names the directory that Dutyfree keeps things in"
        kind = CapacityError if error.errno in FULL else SubstrateUnavailable
        raise kind(f"no place for the materials of workloads: {error}", hint=hint) from error
    return kept


def _make(directory: Path, kept: Path, on_progress: Progress) -> None:
    for left in directory.glob(f"{_DRAFT}*"):  # its maker is dead, because we hold the lock
        shutil.rmtree(left, ignore_errors=True)
    draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=directory))
    try:
        made, scratch = draft / "made", draft / "scratch"
        scratch.mkdir()
        on_progress("fetching attrs and pytest from the package index (once)")
        fetch(WHEELS, made / "wheels")
        fetch([ATTRS], scratch)
        on_progress("making the git history of attrs")
        archive = scratch / f"{ATTRS.name}-{ATTRS.version}.tar.gz"
        attrs_history.make_bundle(archive, made / "attrs.bundle", scratch)
        made.rename(kept)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
