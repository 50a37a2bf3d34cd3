"""`--mount SOURCE:TARGET`."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from dutyfree.cli.options import mount
from dutyfree.model import Mount


def test_the_last_colon_divides() -> None:
    assert mount("/a:b/c:/data") == Mount("/a:b/c", "/data")


def test_a_relative_source_starts_at_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert mount("../sets:/data") == Mount(tmp_path / "sets", "/data")
    assert mount(".:/data") == Mount(tmp_path / "inner", "/data")


@pytest.mark.parametrize("text", ["", "/data", ":/data", "/data:", "/data:relative", "/data:/proc", "/data:/a/../b"])
def test_mistakes_name_themselves(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        mount(text)
