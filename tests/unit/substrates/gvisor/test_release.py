"""Which gVisor a program says that it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from dutyfree.substrates.gvisor import release


@pytest.mark.parametrize(
    ("said", "date"),
    [
        ("runsc version 0.0~20221219.0\nspec: 1.0.2-dev\n", "20221219"),
        ("runsc version release-20240729.0-7-gabcdef0\nspec: 1.1.0-rc.1\n", "20240729"),
        ("runsc version VERSION_MISSING\n", None),
        ("runsc version 202212190000\n", None),
        ("", None),
    ],
)
def test_the_day_of_a_release(said: str, date: str | None) -> None:
    assert release.release_date(said) == date


@pytest.mark.parametrize(
    ("script", "kills"),
    [
        ("echo runsc version 0.0~20221219.0", False),
        ("echo runsc version release-20230102.0", True),
        ("yes", True),
        ("exec sleep 60", True),
    ],
)
async def test_only_what_is_known_to_be_old_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, kills: bool
) -> None:
    monkeypatch.setattr(release, "ANSWER_S", 1.0)
    program = tmp_path / "runsc"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    assert release.kills_trees(await release.version(program)) is kills


async def test_a_program_that_cannot_be_run(tmp_path: Path) -> None:
    assert release.kills_trees(await release.version(tmp_path / "missing"))
