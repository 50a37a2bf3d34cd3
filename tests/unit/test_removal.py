"""Removing trees that are deep, or closed, or share their files with others."""

from __future__ import annotations

import os
from pathlib import Path

from dutyfree.removal import remove_tree


def deep_tree(top: Path, depth: int) -> None:
    top.mkdir()
    here = os.open(top, os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)


def test_files_that_have_other_names_elsewhere_are_left_as_they_are(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("x")
    kept.chmod(0o440)
    deep_tree(tmp_path / "tree", 1500)
    (tmp_path / "tree" / "shared").hardlink_to(kept)
    remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()
    assert kept.stat().st_mode & 0o7777 == 0o440
