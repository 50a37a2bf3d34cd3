"""The workloads of a study: how long they are, and whether they are still what they were."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.study import WHOLE, Arm, Grid, Study
from dutyfree.measure.run.gathering import fingerprint, with_lengths
from dutyfree.measure.workloads.catalogue import find
from support.repository import ROOT

ROMAN = str(ROOT / "examples" / "trajectories" / "roman.traj.json")
TAKES_IN = """
name = "mine"
[[stage]]
name = "repository"
files = { source = "project", target = "~/project" }
[[opening]]
name = "list"
kind = "inspect"
run = "ls ~/project"
expect = { exit_code = 0 }
"""
DRAWS = """
name = "endless"
[mix]
command = 1
[[menu]]
name = "true"
kind = "command"
run = "true"
expect = { exit_code = 0 }
"""


def test_all_of_a_recording_is_its_length_and_of_others_their_opening() -> None:
    grids = (Grid(3, ("T0", ROMAN, "T2"), (WHOLE, 2)), Grid(1, ("T1",), (5,)))
    study = with_lengths(Study("s", (Arm("a", "a"),), grids))
    assert study.grids == (
        Grid(3, ("T0",), (1, 2)),
        Grid(3, (ROMAN,), (12, 2)),
        Grid(3, ("T2",), (8, 2)),
        Grid(1, ("T1",), (5,)),
    )
    assert with_lengths(study) == study


def test_all_of_what_is_drawn_for_ever_has_no_end(tmp_path: Path) -> None:
    (tmp_path / "w.toml").write_text(DRAWS)
    with pytest.raises(InvalidRequest, match="has no end"):
        with_lengths(Study("s", (Arm("a", "a"),), (Grid(1, (str(tmp_path / "w.toml"),), (WHOLE,)),)))


def test_a_workload_is_named_by_the_files_that_it_takes_in_wherever_they_lie(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "project").mkdir(parents=True)
    (here / "w.toml").write_text(TAKES_IN)
    (here / "project" / "a").write_text("one")
    shutil.copytree(here, there)
    assert fingerprint(find(str(here / "w.toml"))) == fingerprint(find(str(there / "w.toml")))
    (there / "project" / "a").write_text("two")
    assert fingerprint(find(str(here / "w.toml"))) != fingerprint(find(str(there / "w.toml")))
    shutil.rmtree(there / "project")
    with pytest.raises(InvalidRequest, match="project"):
        fingerprint(find(str(there / "w.toml")))
