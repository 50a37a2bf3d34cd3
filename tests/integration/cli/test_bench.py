"""`dutyfree bench` on the substrates that this machine has."""

from __future__ import annotations

from pathlib import Path

from support.shell import bench, bench_json


def test_a_study_that_cannot_begin_is_no_result(tmp_path: Path) -> None:
    """What is wrong with an image is known when its arm is opened, and then there is a directory already."""
    arm = ("--substrate", "cell:image=there/is:none", "--trials", "1", "--output", tmp_path / "r")
    assert "there/is:none" in bench(*arm, code=2).stderr
    assert not (tmp_path / "r").exists()


def test_what_is_here_is_found_and_measured(tmp_path: Path) -> None:
    answer = bench_json("--quick", "--time-limit", "5s", "--output", tmp_path / "r")
    assert {"null", "process", "cell"} <= {each["arm"] for each in answer["conditions"]} | set(answer["unavailable"])
    assert answer["trials"] > 0
