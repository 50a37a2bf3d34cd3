"""Mounts that show a Python installation in a sandbox, and nothing else of the home that it is in."""

from __future__ import annotations

import contextlib
import os
import pwd
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from dutyfree.errors import InvalidRequest
from dutyfree.model import Mount
from dutyfree.model.mount import is_inside
from dutyfree.values import dataclass

SHOWN_ANYWAY: Final = ("/bin", "/gnu", "/lib", "/nix", "/opt", "/sbin", "/snap", "/usr")
"""Where every sandbox over this machine's root sees what every user may read."""
_MAX_LINKS: Final = 40
_MAX_SETTINGS_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class PythonInstallation:
    """An interpreter with its packages, as it was found on this machine."""

    program: str
    """The path that starts it, in the sandbox, too."""
    prefixes: tuple[str, ...]
    """The directories to show: the virtual environment, and the installation that it is made from."""

    @property
    def mounts(self) -> list[Mount]:
        """Show each directory where it is on this machine: environments have links and scripts with whole paths."""
        return [Mount(prefix, prefix) for prefix in self.prefixes]


def python_mounts(executable: str | os.PathLike[str] | None = None) -> list[Mount]:
    """Mounts that show the interpreter `executable`, by default the running one, and its packages, where they are here.

    For sandboxes over this machine's own root, which hide homes. They show the virtual environment and the installation
    that it is made from, not what is installed elsewhere (`pip install --user`, editable projects, PYTHONPATH). What
    sandboxes see anyway, such as `/usr`, needs no mount: the list may be empty.

    Nothing is executed: paths come from links and from `pyvenv.cfg`. Raises InvalidRequest for what is no Python
    installation, and for one whose directory is a home, or `~/.local`: a mount would show more than Python.
    """
    return find_python(executable).mounts


def find_python(executable: str | os.PathLike[str] | None = None) -> PythonInstallation:
    """The installation that an interpreter belongs to. Raises as `python_mounts`."""
    named = os.fspath(executable) if executable is not None else sys.executable
    if not named or not Path(named).is_file():
        raise InvalidRequest(f"there is no Python interpreter {named!r:.200}", hint="name one: .venv/bin/python")
    steps = list(_steps(os.path.abspath(named)))  # noqa: PTH100 - `resolve` would follow the links of an environment
    found = {step: prefix for step in steps if _is_installation(prefix := Path(step).parent.parent)}
    if not found:
        hint = "name the interpreter itself: python -c 'import sys; print(sys.executable)' prints its path"
        raise InvalidRequest(f"{named!r:.200} is in no Python installation", hint=hint)
    bases = [base for prefix in found.values() if (base := _base_of(prefix)) is not None and _is_installation(base)]
    hidden = {str(each) for each in (*found.values(), *bases) if not is_inside_any(str(each), SHOWN_ANYWAY)}
    for each in hidden:
        _check_private(each)
    outermost = sorted(each for each in hidden if not is_inside_any(each, hidden - {each}))
    return PythonInstallation(next(iter(found)), tuple(outermost))


def is_inside_any(path: str, directories: set[str] | tuple[str, ...]) -> bool:
    """Whether a path is one of the directories, or below one."""
    return any(is_inside(path, directory) for directory in directories)


def _steps(path: str) -> Iterator[str]:
    """The path, and where the links at its end lead, one after the other."""
    for _ in range(_MAX_LINKS):
        yield path
        if not Path(path).is_symlink():
            return
        path = os.path.normpath(Path(path).parent / Path(path).readlink())
    raise InvalidRequest(f"more than {_MAX_LINKS} links lead from one to the next at {path!r:.200}")


def _is_installation(prefix: Path) -> bool:
    return (prefix / "pyvenv.cfg").is_file() or any((prefix / "lib").glob("python3*/os.py"))


def _base_of(prefix: Path) -> Path | None:
    """The installation that a virtual environment was made from; None for an installation."""
    try:
        with (prefix / "pyvenv.cfg").open("rb") as file:
            settings = os.fsdecode(file.read(_MAX_SETTINGS_BYTES))
    except OSError:
        return None
    for line in settings.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip() == "home" and Path(value.strip()).is_absolute():
            return Path(os.path.normpath(value.strip())).parent
    return None


def _check_private(prefix: str) -> None:
    """Raise InvalidRequest for a directory that has more in it than Python."""
    homes = {os.environ.get("HOME") or "/root"}
    with contextlib.suppress(KeyError):  # a user without an entry, as in containers
        homes.add(pwd.getpwuid(os.geteuid()).pw_dir)
    is_shared = Path(prefix).name == ".local" or (Path(prefix) / ".ssh").exists() or str(Path(prefix).parent) == "/home"
    for real in {prefix, os.path.realpath(prefix)}:
        if is_shared or any(is_inside(home, real) for home in homes):
            hint = "make a virtual environment elsewhere, or show what is needed with mounts of your own"
            raise InvalidRequest(f"Python is installed in {prefix!r}, which has more than Python in it", hint=hint)
