"""Materials: the same everywhere, made once, whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dutyfree.errors import InfraFailed, InvalidRequest
from dutyfree.measure.workloads import attrs_history, catalogue, fetching, materials
from dutyfree.measure.workloads.fetching import Pinned
from dutyfree.measure.workloads.workload import ActionKind, ScriptedAction, Workload
from dutyfree.model import Action, FileInput, Stage
from support.workload_materials import KEPT, prepared

MAKE = """
import sys
from pathlib import Path
from dutyfree.measure.workloads import catalogue, materials
print(materials.prepare(catalogue.find("T2"), Path(sys.argv[1]), print).stages[1].files[0].source)
"""


def test_sources_become_paths() -> None:
    workload = prepared("T2")
    paths = [Path(given.source) for stage in workload.stages for given in stage.files]
    assert [path.name for path in paths] == ["search.py", "attrs.bundle", "wheels"]
    assert all(path.exists() for path in paths)
    wheels = {path.name.split("-")[0] for path in (KEPT / materials.EDITION / "wheels").iterdir()}
    assert wheels == {pin.name for pin in materials.WHEELS}


def test_the_bundle_has_the_commits_that_workloads_name() -> None:
    bundle = prepared("T2").stages[1].files[0].source
    heads = subprocess.run(["git", "bundle", "list-heads", bundle], capture_output=True, text=True, check=True)
    assert {line.split()[0] for line in heads.stdout.splitlines()} == {attrs_history.BUGGY_COMMIT}


def test_a_workload_without_materials_needs_no_directory(tmp_path: Path) -> None:
    workload = catalogue.find("T0")
    assert materials.prepare(workload, tmp_path / "never") is workload
    assert not (tmp_path / "never").exists()


def test_an_unknown_material_is_refused(tmp_path: Path) -> None:
    stage = Stage("image", files=(FileInput("material:gold", "/~/gold"),))
    workload = Workload("a", stages=(stage,), opening=(ScriptedAction("a", ActionKind.EDIT, Action("ls")),))
    with pytest.raises(InvalidRequest, match="no material 'gold'"):
        materials.prepare(workload, tmp_path)


def test_two_processes_at_once_make_them_once(tmp_path: Path) -> None:
    prepared("T2")  # or skip
    command = [sys.executable, "-c", MAKE, str(tmp_path / "shared")]
    makers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [maker.communicate(timeout=100)[0].splitlines() for maker in makers]
    assert [maker.returncode for maker in makers] == [0, 0]
    assert said[0][-1] == said[1][-1]
    assert sum("fetching" in line for lines in said for line in lines) == 1
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == [materials.EDITION, "lock"]


def test_offline_is_said_with_a_way_out_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "draft-left-by-one-who-was-killed").mkdir()
    with pytest.raises(InfraFailed, match="could not be fetched") as caught:
        materials.prepare(catalogue.find("T1"), tmp_path)
    assert caught.value.hint is not None
    assert "copy the directory" in caught.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_another_file_under_the_same_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "iniconfig-2.1.0-py3-none-any.whl").write_bytes(b"not what was pinned")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(InfraFailed, match="DO NOT MATCH THE HASHES"):
        fetching.fetch([Pinned("iniconfig", "2.1.0", "0" * 64)], tmp_path / "out")


def test_fetching_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(InfraFailed, match=r"not done after 0\.01 s"):
        fetching.fetch(materials.WHEELS, tmp_path, timeout_s=0.01)
