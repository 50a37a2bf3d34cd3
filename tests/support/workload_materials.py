"""The materials of the built-in workloads, fetched once for all test runs."""

from __future__ import annotations

import pytest

from dutyfree.errors import InfraFailed
from dutyfree.measure.workloads import catalogue, materials
from dutyfree.measure.workloads.workload import Workload
from support.repository import ROOT

KEPT = ROOT / ".build" / "materials"


def prepared(name: str) -> Workload:
    """The workload, ready to run; the test is skipped where no package index is in reach."""
    try:
        return materials.prepare(catalogue.find(name), KEPT)
    except InfraFailed as error:
        pytest.skip(f"materials of workloads: {error.message:.100}")
