"""Merges of layers of any shape show what the kernel's overlay shows."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.images.trees.layers import merge_trees
from dutyfree.removal import remove_tree
from support.layer_trees import IS_ROOT, OWNERSHIP, described
from support.layer_values import LAYERS, Layer, written


@pytest.fixture(scope="module")
def places() -> Iterator[Path]:
    place = Path(tempfile.mkdtemp(prefix="test-trees-"))
    yield place
    remove_tree(place)


@pytest.mark.skipif(not IS_ROOT, reason="only root can mount overlays here")
@settings(max_examples=40, deadline=None)
@given(layers=st.lists(LAYERS, min_size=2, max_size=4), kept=st.integers(0, 2))
def test_a_merge_shows_what_the_kernel_shows(places: Path, layers: list[Layer], kept: int) -> None:
    kept = min(kept, len(layers) - 2)
    place = Path(tempfile.mkdtemp(dir=places))
    trees = written(layers, place)
    merge_trees(trees, place / "whole", bottom=True, ownership=OWNERSHIP)
    merge_trees(trees[kept:], place / "part", bottom=False, ownership=OWNERSHIP)
    (place / "empty").mkdir()
    whole = described(place / "whole")
    assert as_the_kernel_shows(trees, place) == whole
    assert as_the_kernel_shows([*trees[:kept], place / "empty", place / "part"], place) == whole


def as_the_kernel_shows(trees: list[Path], place: Path) -> dict[str, tuple[object, ...]]:
    (place / "seen").mkdir(exist_ok=True)
    lower = ":".join(str(tree) for tree in reversed(trees))
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", f"ro,lowerdir={lower}", place / "seen"], check=True)
    try:
        return described(place / "seen")
    finally:
        subprocess.run(["umount", place / "seen"], check=True)
