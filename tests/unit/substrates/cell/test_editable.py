"""Which of the host's directories and files a cell's root may edit: shown on a tree that is made for it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dutyfree.substrates.cell import editable
from dutyfree.substrates.cell.editable import Tree, Walk, survey


@pytest.fixture
def tree() -> Iterator[Path]:
    """Below a directory that is open to everyone, as those of the host are."""
    path = Path(tempfile.mkdtemp(prefix="dutyfree-test-", dir="/var/tmp"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def found(tree: Path, levels: int = 4, directories: int = 99, copies: int = 99, **options: object) -> tuple[set, set]:
    """The names of directories and copies, relative to the tree."""
    hidden = {str(tree / name) for name in options.get("hidden", ())}  # type: ignore[attr-defined]
    result = survey(Walk(hidden, (Tree(str(tree), levels, directories, copies),)), one_user=False)
    inside = [path for path, _mode in result.directories if path.startswith(f"{tree}/")]
    files = [path for path, _mode, _owner in result.copies]
    return {str(Path(path).relative_to(tree)) for path in inside}, {str(Path(path).relative_to(tree)) for path in files}


def make(path: Path, mode: int = 0o644, size_bytes: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size_bytes)
    path.chmod(mode)


def test_only_what_everyone_may_read_is_taken(tree: Path) -> None:
    make(tree / "open/file")
    make(tree / "open/private", 0o640)
    make(tree / "closed/file")
    make(tree / "half/file")
    (tree / "closed").chmod(0o700)
    (tree / "half").chmod(0o711)
    (tree / "link").symlink_to("closed/file")
    (tree / "links").symlink_to("closed")
    assert found(tree) == ({"open"}, {"open/file"})


def test_nothing_hidden_is_taken(tree: Path) -> None:
    make(tree / "one/file")
    make(tree / "one/other")
    make(tree / "two/deep/file")
    assert found(tree, hidden=("one/file", "two")) == ({"one"}, {"one/other"})


def test_upper_levels_come_first_and_everything_is_bounded(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tree / "a/b/c/d/file")
    make(tree / "a/file")
    make(tree / "z/file")
    make(tree / "z/large", size_bytes=editable.MAX_FILE_BYTES + 1)
    assert found(tree) == ({"a", "a/b", "a/b/c", "z"}, {"a/file", "z/file"})
    assert found(tree, levels=2) == ({"a", "z"}, {"a/file", "z/file"})
    assert found(tree, directories=3) == ({"a", "z"}, {"a/file", "z/file"})
    assert found(tree, copies=1) == ({"a", "a/b", "a/b/c", "z"}, {"a/file"})
    monkeypatch.setattr(editable, "MAX_BYTES", 1)
    assert found(tree)[1] == {"a/file"}
    monkeypatch.setattr(editable, "MAX_ENTRIES", 2)
    assert found(tree) == ({"a", "z"}, set())


def test_accounts_are_locked() -> None:
    texts = {path: text for path, _mode, text in survey(Walk(()), one_user=False).texts}
    assert all(line.split(":")[1] == "!" for line in texts["/etc/shadow"].splitlines())
    assert "/etc/shadow" not in {path for path, _mode, _text in survey(Walk(()), one_user=True).texts}
