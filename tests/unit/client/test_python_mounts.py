"""Which directories show a Python installation, and which are refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import dutyfree
from dutyfree.client.python_mounts import SHOWN_ANYWAY, find_python, is_inside_any
from dutyfree.errors import InvalidRequest


def installation(prefix: Path) -> Path:
    """An installation with an interpreter; returns the interpreter."""
    (prefix / "lib/python3.11").mkdir(parents=True)
    (prefix / "lib/python3.11/os.py").touch()
    (prefix / "bin").mkdir()
    (prefix / "bin/python3.11").touch()
    return prefix / "bin/python3.11"


def environment(prefix: Path, base: Path, *, link: bool = True) -> Path:
    """A virtual environment made from the interpreter `base`; returns its own interpreter."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    python = prefix / "bin/python"
    if link:
        python.symlink_to(base)
    else:
        python.touch()
    return python


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("link", [True, False], ids=["linked", "copied"])
def test_an_environment_needs_itself_and_what_it_was_made_from(home: Path, link: bool) -> None:
    base = installation(home / ".local/share/uv/python/cpython-3.11.9")
    python = environment(home / "project/.venv", base, link=link)
    found = find_python(python)
    assert found.program == str(python)
    assert [(each.source, each.target) for each in found.mounts] == [
        (str(base.parent.parent),) * 2,
        (str(home / "project/.venv"),) * 2,
    ]


def test_links_of_directories_stay_as_they_are_written(home: Path) -> None:
    """As uv makes them: the environment leads to `cpython-3.11`, which is a link to `cpython-3.11.9`."""
    installation(home / "python/cpython-3.11.9")
    (home / "python/cpython-3.11").symlink_to("cpython-3.11.9")
    python = environment(home / ".venv", home / "python/cpython-3.11/bin/python3.11")
    assert find_python(python).prefixes == (str(home / ".venv"), str(home / "python/cpython-3.11"))


def test_a_link_in_a_directory_of_programs_shows_the_installation_alone(home: Path) -> None:
    base = installation(home / "python/cpython-3.11.9")
    (home / ".local/bin").mkdir(parents=True)
    (home / ".local/bin/python3").symlink_to(base)
    found = find_python(home / ".local/bin/python3")
    assert (found.program, found.prefixes) == (str(base), (str(base.parent.parent),))


def test_an_environment_inside_its_installation_needs_one_mount(home: Path) -> None:
    base = installation(home / "conda")
    assert find_python(environment(home / "conda/envs/a", base)).prefixes == (str(home / "conda"),)


def test_the_running_interpreter_is_the_default() -> None:
    shown = {str(each.source) for each in dutyfree.python_mounts()}
    for prefix in (sys.prefix, sys.base_prefix):
        assert is_inside_any(prefix, SHOWN_ANYWAY) or is_inside_any(os.path.normpath(prefix), shown)


@pytest.mark.parametrize("place", ["", ".local", ".."], ids=["the home", "~/.local", "above the home"])
def test_a_directory_with_more_than_python_in_it_is_refused(home: Path, place: str) -> None:
    python = installation(Path(os.path.normpath(home / place)))
    with pytest.raises(InvalidRequest, match="more than Python"):
        dutyfree.python_mounts(python)


def test_settings_of_an_environment_cannot_show_anything_else(home: Path) -> None:
    """A project may bring an environment of its own, whose settings name a directory with secrets."""
    (home / ".ssh").mkdir(parents=True)
    base = installation(home / "python")
    python = environment(home / "project/.venv", base, link=False)
    for place in (home / ".ssh/bin", home / "bin", Path("/etc/ssl/bin"), Path("../../x")):
        (home / "project/.venv/pyvenv.cfg").write_text(f"home = {place}\n")
        assert find_python(python).prefixes == (str(home / "project/.venv"),)


def test_what_is_no_installation_is_refused(home: Path) -> None:
    (home / "shims").mkdir(parents=True)
    (home / "shims/python").write_text("#!/bin/sh\n")
    with pytest.raises(InvalidRequest, match="in no Python installation"):
        dutyfree.python_mounts(home / "shims/python")
    with pytest.raises(InvalidRequest, match="no Python interpreter"):
        dutyfree.python_mounts(home / "nowhere/python")
    (home / "one").symlink_to("two")
    (home / "two").symlink_to("one")
    with pytest.raises(InvalidRequest):
        dutyfree.python_mounts(home / "one")
