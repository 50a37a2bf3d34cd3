"""The recipe of a real package, from its example: built once, and its tests run in what was built."""

from __future__ import annotations

from pathlib import Path

import pytest

from dutyfree.images.recipes import file as recipe_file
from dutyfree.images.recipes.builder import build
from dutyfree.model import Action, SandboxSpec
from dutyfree.substrates.cell import CellSubstrate


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("attrs")
async def test_attrs_is_built_once_and_its_tests_run(attrs_directory: Path, tmp_path: Path) -> None:
    name, wanted = recipe_file.load(attrs_directory / "recipe.toml")
    assert name == "attrs"
    async with CellSubstrate(store=tmp_path / "store") as cells:
        first = await build(wanted, cells, cells.store)
        assert [(stage.name, stage.cached) for stage in first.stages[1:]] == [
            ("repository", False),
            ("dependencies", False),
        ]
        second = await build(wanted, cells, cells.store)
        assert all(stage.cached for stage in second.stages)
        assert second.image == first.image
        async with await cells.create(SandboxSpec(image=second.image)) as sandbox:
            line = "git status --porcelain && python -m pytest -q -p no:cacheprovider -k 'not wrapped_annotation' tests"
            seen = await sandbox.run(Action(line))
        assert seen.exit_code == 0, seen.text[-2000:]
        assert " passed" in seen.text.splitlines()[-1]
