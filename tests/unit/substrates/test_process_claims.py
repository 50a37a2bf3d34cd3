"""Directories of `process`: the next substrate removes those of dead claims, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from dutyfree import claims
from dutyfree.errors import SubstrateFailed
from dutyfree.substrates import process
from dutyfree.substrates.process import ProcessSubstrate


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.setattr(claims, "state_base", lambda: tmp_path / "run")
    return place


def list_directory(directory: Path) -> list[Path]:
    return list(directory.iterdir())


def test_a_directory_in_use_stays(own_place: Path) -> None:
    claim = claims.claim(process.KIND)
    process._sweep()
    directory = process._make_directory(claim)
    process._sweep()
    assert list(own_place.iterdir()) == [directory]
    claim.release()


def test_the_directory_of_a_dead_process_goes(own_place: Path) -> None:
    claim = claims.claim(process.KIND)
    _, moment, boot = claim.name.split("-")
    dead = own_place / f"{process._PREFIX}4194304-{moment}-{boot}"
    of_others = own_place / f"{process._PREFIX}4194304-{moment}-{'0' * 12}"
    for directory in (dead, of_others):
        (directory / "sandbox").mkdir(parents=True)
    process._sweep()
    assert list(own_place.iterdir()) == [of_others]
    claim.release()


async def test_what_a_closed_substrate_could_not_remove_goes_with_the_next_one(
    own_place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise SubstrateFailed(f"cannot remove {path}")

    first, second = ProcessSubstrate(), ProcessSubstrate()
    await first.open()
    (left,) = list_directory(own_place)
    with monkeypatch.context() as patched:
        patched.setattr(process, "remove_tree", refuse)
        with pytest.raises(SubstrateFailed):
            await first.close()
    assert list_directory(own_place) == [left]
    async with second:
        assert left not in list_directory(own_place)
