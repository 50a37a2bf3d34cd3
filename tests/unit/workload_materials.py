"""The materials of the built-in workloads, fetched once for all test runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dutyfree.errors import InfraFailed
from dutyfree.measure.workloads import catalogue, materials
from dutyfree.measure.workloads.workload import Workload

KEPT = Path(__file__).parents[2] / ".build" / "materials"


def prepared(name: str) -> Workload:
    """The workload, ready to run; the test is skipped where no package index is in reach."""
    try:
        return materials.prepare(catalogue.find(name), KEPT)
    except InfraFailed as error:
        pytest.skip(f"materials of workloads: {error.message:.100}")
