"""The sweep removes what dead owners of this machine left, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dutyfree.errors import SubstrateUnavailable
from dutyfree.substrates.cell import owner
from dutyfree.substrates.hierarchies import Cgroups

NO_CGROUPS = Cgroups(0)
DIES = """
import os
from dutyfree.substrates.cell import owner
claimed = owner.claim()
(claimed.disk_directory / "left").mkdir()
print(claimed.name, flush=True)
os._exit(9)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DUTYFREE_STATE_DIR", str(tmp_path))
    return tmp_path / "dutyfree"


def test_a_dead_owner_is_swept_and_a_live_one_is_not(home: Path) -> None:
    alive = owner.claim()
    died = subprocess.run([sys.executable, "-c", DIES], capture_output=True, text=True, check=False)
    dead = died.stdout.strip()
    assert (home / dead / "left").is_dir()
    try:
        assert dead in owner.sweep(NO_CGROUPS)
        assert not (home / dead).exists()
        assert (home / alive.name).is_dir()
    finally:
        alive.release(NO_CGROUPS)
    assert not (home / alive.name).exists()


@pytest.mark.parametrize("name", ["2024-11-16", "999999-report", "7-abcdef", "999999-abcdef012-0123456789ab", "photos"])
def test_names_that_are_not_ours_are_left_alone(home: Path, name: str) -> None:
    (home / name).mkdir(parents=True)
    home.chmod(0o700)
    assert name not in owner.sweep(NO_CGROUPS)
    assert (home / name).is_dir()


def test_a_base_that_is_a_link_is_refused(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    home.symlink_to(elsewhere)
    with pytest.raises(SubstrateUnavailable):
        owner.claim()


def test_a_deep_tree_does_not_stop_the_sweep(home: Path) -> None:
    died = subprocess.run([sys.executable, "-c", DIES], capture_output=True, text=True, check=False)
    dead = died.stdout.strip()
    here = os.open(home / dead, os.O_DIRECTORY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert dead in owner.sweep(NO_CGROUPS)
    assert not (home / dead).exists()
