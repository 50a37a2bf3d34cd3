"""`dutyfree run` in a cell, which is its default."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.shell import DUTYFREE


def test_a_cell_is_the_default() -> None:
    done = subprocess.run([*DUTYFREE, "run", "--", "python3", "-c", "print(1)"], capture_output=True, timeout=60)
    if done.returncode == 3 and b"hint: " in done.stderr:
        pytest.skip(f"dutyfree run in a cell: {done.stderr.decode()}")
    assert (done.stdout, done.returncode) == (b"1\n", 0)


def test_a_plain_run_imports_only_what_it_needs() -> None:
    program = (
        "import sys; from dutyfree.cli.main import main; code = main(['run', '--quiet', '--', 'true']);"
        "print(code, *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
    )
    code, *loaded = done.stdout.split()
    if code == "3" and "hint: " in done.stderr:
        pytest.skip(f"dutyfree run in a cell: {done.stderr}")
    slow = {"tomllib", "shutil", "tempfile", "ctypes", "secrets", "difflib", "importlib.metadata"}
    parts = ("archive", "codec", "egress", "images.oci", "images.recipes", "images.trees.layers", "guest.session")
    parts += ("client.git", "client.groups", "pool.status", "substrates.metering", "sync")
    assert not {*slow, *(f"dutyfree.{each}" for each in parts)} & {*loaded}
    assert len(loaded) < 375, "more modules than a plain run needs"
