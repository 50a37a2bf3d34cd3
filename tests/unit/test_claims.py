"""Whose process is dead, and whose only cannot be seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dutyfree import claims


@pytest.fixture(autouse=True)
def _own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "state_base", lambda: tmp_path)


@pytest.fixture
def boot() -> str:
    """What the names of this boot's claims end with."""
    claimed = claims.claim()
    claimed.release()
    return claimed.name.rpartition("-")[2]


def test_who_has_no_lock_is_dead_with_its_process(boot: str) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        name = f"{process.pid}-abcdef-{boot}"
        assert not claims.is_dead(name)
        process.kill()
    assert claims.is_dead(name)


def test_a_process_that_others_may_not_see_is_alive(boot: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert not claims.is_dead(f"4194305-abcdef-{boot}")  # as with hidepid, /proc knows nothing of it


@pytest.mark.parametrize("pid", ["0", "99999999", "9" * 30])
def test_numbers_that_no_process_has_are_not_judged(boot: str, pid: str) -> None:
    assert not claims.is_dead(f"{pid}-abcdef-{boot}")


def test_a_claim_that_was_given_up_is_dead_though_its_process_lives() -> None:
    released, abandoned, used = (claims.claim("x") for _ in range(3))
    released.release()
    abandoned.abandon()
    assert [claims.is_dead(each.name, "x") for each in (released, abandoned, used)] == [True, True, False]
    assert claims.dead("x") == [abandoned.directory], "by it the next one finds what is left"
    used.release()


def test_a_program_that_has_the_lock_keeps_a_claim_that_was_given_up() -> None:
    claimed = claims.claim("x")
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=[claimed.lock_fd]
    ) as program:
        claimed.abandon()
        assert not claims.is_dead(claimed.name, "x")
        program.kill()
    assert claims.is_dead(claimed.name, "x")
