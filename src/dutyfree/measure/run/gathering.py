"""The workloads of a study: found, made ready on this machine, and named by what is in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.study import Study
from dutyfree.measure.workloads.catalogue import find
from dutyfree.measure.workloads.drawing import draw
from dutyfree.measure.workloads.materials import prepare
from dutyfree.measure.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Gathered:
    """By the names that the study uses."""

    workloads: dict[str, Workload]
    fingerprints: dict[str, str]
    """Change with anything that a workload does; not with where its materials lie on this machine."""


def gather(
    study: Study, *, materials: Path | None = None, on_progress: Callable[[str], None] = lambda _: None
) -> Gathered:
    """All workloads that the study names. Blocks; the first time it may fetch and build materials.

    Raises InvalidRequest for a workload that there is not, or that has no trajectory of a length that is asked for, and
    otherwise as `materials.prepare` does.
    """
    found = {name: find(name) for name in dict.fromkeys(name for grid in study.grids for name in grid.workloads)}
    for grid in study.grids:
        for name in grid.workloads:
            for length in grid.lengths:
                draw(found[name], length, study.seed)
    return Gathered(
        {name: prepare(workload, materials, on_progress) for name, workload in found.items()},
        {name: fingerprint(workload) for name, workload in found.items()},
    )


def fingerprint(workload: Workload) -> str:
    """The digest of all that it does."""
    try:
        text = json.dumps(asdict(workload), sort_keys=True, default=_told)
    except TypeError as error:
        raise InvalidRequest(f"workload {workload.name!r} cannot be named by its content: {error}") from error
    return hashlib.sha256(text.encode()).hexdigest()


def _told(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{type(value).__name__} is no part of a workload")
