"""Mount points in a root that may be hostile: made, never through a link."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest
from dutyfree.substrates.gvisor.targets import make_target

OWN = os.geteuid()


@pytest.mark.parametrize("is_directory", [True, False])
def test_what_is_missing_is_made_and_what_is_there_is_kept(tmp_path: Path, is_directory: bool) -> None:
    (tmp_path / "a").mkdir(mode=0o700)
    for _ in range(2):
        make_target(tmp_path, "/a/b/c", is_directory=is_directory, owner=OWN)
    assert (tmp_path / "a/b").is_dir()
    assert (tmp_path / "a/b/c").is_dir() is is_directory
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700


def test_no_link_is_followed(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    root.mkdir()
    outside.mkdir()
    (root / "link").symlink_to(outside)
    for target in ("/link", "/link/x"):
        with pytest.raises(InvalidRequest, match="symbolic link"):
            make_target(root, target, is_directory=True, owner=OWN)
    assert not list(outside.iterdir())


def test_what_is_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for target, is_directory in (("/file", True), ("/file/x", True), ("/directory", False), ("/pipe", False)):
        with pytest.raises(InvalidRequest):
            make_target(tmp_path, target, is_directory=is_directory, owner=OWN)
