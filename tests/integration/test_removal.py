"""Removing trees as an ordinary user."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import dutyfree

ORDINARY = ["setpriv", "--reuid", "63018", "--regid", "63018", "--clear-groups"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user")
def test_an_ordinary_user_removes_what_programs_have_closed() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # pytest's own are closed to others
        _remove_as_ordinary_user(Path(directory))


def _remove_as_ordinary_user(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    code = f"""
import os, sys
from pathlib import Path
from dutyfree.removal import remove_tree
top = Path({str(tmp_path / "tree")!r})
for name in ("a", "a/b", "a/b/c"):
    (top / name).mkdir(parents=True)
(top / "a/b/c/file").write_text("x")
os.link(top / "a/b/c/file", {str(tmp_path / "kept")!r})
os.chmod({str(tmp_path / "kept")!r}, 0o400)
for name in ("a/b/c", "a/b", "a"):
    (top / name).chmod(0)
remove_tree(top)
assert not top.exists()
assert os.stat({str(tmp_path / "kept")!r}).st_mode & 0o7777 == 0o400
"""
    environment = {"PYTHONPATH": str(Path(dutyfree.__file__).parents[1]), "PATH": os.environ["PATH"]}
    done = subprocess.run([*ORDINARY, sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
