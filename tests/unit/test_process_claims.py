"""Directories of `process`: whoever sweeps up after the dead does not take what somebody is just about to own."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from dutyfree.substrates import process


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_a_sweep_between_a_directory_and_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    lock, sweeps = fcntl.flock, iter([process._sweep, process._sweep])

    def interrupted(file: Any, operation: int) -> None:
        if operation == fcntl.LOCK_EX and (sweep := next(sweeps, None)) is not None:
            sweep()
        lock(file, operation)

    monkeypatch.setattr(process.fcntl, "flock", interrupted)
    directory, lock_fd = process._claim()
    assert directory.is_dir()
    process._sweep()
    assert directory.is_dir(), "it is owned"
    os.close(lock_fd)


def test_what_nobody_owns_any_more_goes(own_place: Path) -> None:
    directory, lock_fd = process._claim()
    (directory / "sandbox").mkdir()
    os.close(lock_fd)
    process._sweep()
    assert list(own_place.iterdir()) == []


def test_a_directory_without_a_lock_is_left_alone_for_a_while(own_place: Path) -> None:
    young, old = own_place / f"{process._PREFIX}young", own_place / f"{process._PREFIX}old"
    for directory in (young, old):
        directory.mkdir()
    os.utime(old, (1, 1))
    process._sweep()
    assert list(own_place.iterdir()) == [young]
