"""What several integration tests share."""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from support.repository import ROOT


@pytest.fixture(scope="session")
def attrs_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The inputs of the attrs recipe, from PyPI. Tests that use it are in the group `attrs`, and share the download."""
    try:
        with urllib.request.urlopen("https://pypi.org/simple/attrs/", timeout=10):
            pass
    except OSError:
        pytest.skip("PyPI is out of reach")
    directory = tmp_path_factory.mktemp("attrs")
    prepare = ROOT / "examples" / "attrs" / "prepare.py"
    done = subprocess.run([sys.executable, prepare, directory], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return directory
