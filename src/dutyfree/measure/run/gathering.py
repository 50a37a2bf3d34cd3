"""Loads the workloads of a study, prepares their materials, and computes their fingerprints."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dutyfree.errors import InvalidRequest
from dutyfree.images.recipes import inputs
from dutyfree.measure.design.study import WHOLE, Grid, Study
from dutyfree.measure.workloads.catalogue import find
from dutyfree.measure.workloads.drawing import draw
from dutyfree.measure.workloads.materials import MARK, prepare
from dutyfree.measure.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Gathered:
    """The workloads, by the names that the study uses."""

    workloads: dict[str, Workload]
    fingerprints: dict[str, str]
    """Digests that change with anything that a workload does or reads, but not with the paths on this machine."""


def with_lengths(study: Study) -> Study:
    """The study with numbers in place of WHOLE. Raises InvalidRequest for an unknown workload."""
    return replace(study, grids=tuple(each for grid in study.grids for each in _with_lengths(grid)))


def _with_lengths(grid: Grid) -> list[Grid]:
    """The grid; or, if it uses WHOLE, one grid per workload, because workloads differ in length."""
    if WHOLE not in grid.lengths:
        return [grid]
    return [replace(grid, workloads=(name,), lengths=_lengths(grid, find(name))) for name in grid.workloads]


def _lengths(grid: Grid, workload: Workload) -> tuple[int, ...]:
    if not workload.opening:
        raise InvalidRequest(f"workload {workload.name!r} has no opening: all of it has no end", hint="name a length")
    return tuple(dict.fromkeys(len(workload.opening) if each == WHOLE else each for each in grid.lengths))


def gather(study: Study, *, on_progress: Callable[[str], None] = lambda _: None) -> Gathered:
    """Load all workloads that the study names. Blocks; the first call may fetch and build materials.

    Raises InvalidRequest for an unknown workload, or one that has no trajectory of a length in the study, and otherwise
    as `materials.prepare` does.
    """
    found = {name: find(name) for name in dict.fromkeys(name for grid in study.grids for name in grid.workloads)}
    for grid in study.grids:
        for name in grid.workloads:
            for length in grid.lengths:
                draw(found[name], length, study.seed)
    return Gathered(
        {name: prepare(workload, on_progress=on_progress) for name, workload in found.items()},
        {name: fingerprint(workload) for name, workload in found.items()},
    )


def fingerprint(workload: Workload) -> str:
    """The digest of a workload's actions and of the files that it reads. Raises InvalidRequest if one is missing."""
    content = asdict(workload)
    for given in (given for stage in content["stages"] for given in stage["files"]):
        if not given["source"].startswith(MARK):  # the content of materials is pinned
            given["source"] = inputs.fingerprint(Path(given["source"]))
    try:
        text = json.dumps(content, sort_keys=True, default=_as_json)
    except TypeError as error:
        raise InvalidRequest(f"workload {workload.name!r} cannot be named by its content: {error}") from error
    return hashlib.sha256(text.encode()).hexdigest()


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} is no part of a workload")
