"""`dutyfree run` in a cell, which is its default."""

from __future__ import annotations

import subprocess

import pytest

from support.shell import DUTYFREE


def test_a_cell_is_the_default() -> None:
    done = subprocess.run([*DUTYFREE, "run", "--", "python3", "-c", "print(1)"], capture_output=True, timeout=60)
    if done.returncode == 3 and b"hint: " in done.stderr:
        pytest.skip(f"dutyfree run in a cell: {done.stderr.decode()}")
    assert (done.stdout, done.returncode) == (b"1\n", 0)
