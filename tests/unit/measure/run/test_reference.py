"""The reference is measured before every block, and kept with the results."""

from __future__ import annotations

from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.study import Arm
from dutyfree.measure.results.directory import load_results
from dutyfree.measure.results.reading import JournalReading
from dutyfree.measure.run.reference import bare_spawn_ns
from support.study_runs import run_study, study_of


async def test_every_block_has_one(tmp_path: Path) -> None:
    results = await run_study(tmp_path / "r", study_of(Arm("fake", "fake")))
    assert set(results.references) == {trial.block for trial in results.trials}
    assert all(50_000 < spawn_ns < 10_000_000_000 for spawn_ns in results.references.values())
    assert load_results(tmp_path / "r").references == results.references


def test_a_bare_process_takes_some_time() -> None:
    assert (bare_spawn_ns() or 0) > 0


@pytest.mark.parametrize(("block", "spawn_ns"), [(0, 0), (0, -1), (-1, 5), ("0", 5), (0, None), (0, 2**63)])
def test_an_impossible_one_is_refused(block: object, spawn_ns: object) -> None:
    with pytest.raises(InvalidRequest, match="not a record"):
        JournalReading(()).take(2, {"kind": "reference", "block": block, "spawn_ns": spawn_ns})
