"""The freezer's files, of both versions, without a kernel behind them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dutyfree.errors import SubstrateFailed
from dutyfree.substrates.cell import freezer
from dutyfree.substrates.cell.freezer import Freezer, thaw_all


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the only one of the cell."""
    monkeypatch.setattr(freezer, "children", lambda pid: [])
    monkeypatch.setattr(freezer.ProcessTree, "is_ours", lambda self, pid: pid == os.getpid())


def group(directory: Path, files: dict[str, str]) -> Path:
    (directory / "cgroup.procs").write_text(str(os.getpid()))
    for name, text in files.items():
        (directory / name).write_text(text)
    return directory


@pytest.mark.usefixtures("alone")
async def test_version_2(tmp_path: Path) -> None:
    place = group(tmp_path, {"cgroup.freeze": "0", "cgroup.events": "populated 1\nfrozen 1\n"})
    cell = Freezer(str(place), os.getpid(), 1)
    await cell.freeze()
    assert (place / "cgroup.freeze").read_text() == "1"
    cell.thaw()
    assert (place / "cgroup.freeze").read_text() == "0"


@pytest.mark.usefixtures("alone")
async def test_version_1(tmp_path: Path) -> None:
    place = group(tmp_path, {"freezer.state": "THAWED"})
    await Freezer(str(place), os.getpid(), 1).freeze()
    assert (place / "freezer.state").read_text() == "FROZEN"
    thaw_all(tmp_path)
    assert (place / "freezer.state").read_text() == "THAWED"


@pytest.mark.usefixtures("alone")
async def test_a_cell_that_is_being_killed_is_not_frozen(tmp_path: Path) -> None:
    place = group(tmp_path, {"freezer.state": "THAWED"})
    cell = Freezer(str(place), os.getpid(), 1)
    cell.end()
    with pytest.raises(SubstrateFailed):
        await cell.freeze()
    assert (place / "freezer.state").read_text() == "THAWED"


async def test_a_guest_that_is_gone_is_said(tmp_path: Path) -> None:
    place = group(tmp_path, {"freezer.state": "THAWED"})
    with pytest.raises(SubstrateFailed):
        await Freezer(str(place), os.getpid(), 1).freeze()
