"""Finds workloads: built-in ones, files, and recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dutyfree.errors import InvalidRequest
from dutyfree.measure.workloads.file import load_workload
from dutyfree.measure.workloads.replay import load_recording
from dutyfree.measure.workloads.workload import Workload

BUILT_IN: Final = ("T0", "T1", "T2")
_DIRECTORY: Final = Path(__file__).parent / "builtin"


def find(name_or_path: str) -> Workload:
    """The built-in workload of this name, the workload in a `.toml` file, or a recording as a workload.

    Raises InvalidRequest for what is none of these.
    """
    if name_or_path in BUILT_IN:
        return load_workload(_DIRECTORY / f"{name_or_path}.toml")
    path = Path(name_or_path)
    if path.suffix == ".toml":
        return load_workload(path)
    if path.is_file():
        return load_recording(path)
    hint = f"use {', '.join(BUILT_IN)}, a .toml file, or a recorded trajectory"
    raise InvalidRequest(f"there is no workload {name_or_path!r:.200}", hint=hint)
