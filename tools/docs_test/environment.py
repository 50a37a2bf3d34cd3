"""What pages run in: a wheel, in fresh virtual environments, and what else this machine has."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from docs_test.blocks import Mistake

ROOT: Final = Path(__file__).resolve().parents[2]


class Environments:
    """Two virtual environments with the wheel: one with nothing else, one with the extras of this interpreter.

    The extras are those that `make setup` installed: their directory comes last on the path, so that `dutyfree` is the
    wheel's, and nothing is downloaded.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._lock = threading.Lock()
        self._found: dict[str, bool] = {}
        self._bare, self._extras = scratch / "bare", scratch / "extras"
        wheels = scratch / "wheels"
        with ThreadPoolExecutor() as threads:
            made = [threads.submit(_make_environment, each) for each in (self._bare, self._extras)]
            _pip("wheel", "--no-deps", "--wheel-dir", str(wheels), str(ROOT))
            for job in made:
                job.result()
        [self._wheel] = wheels.glob("dutyfree-*.whl")
        for each in (self._bare, self._extras):
            _pip("install", "--no-index", str(self._wheel), python=each / "bin/python")
        [packages] = self._extras.glob("lib/python3*/site-packages")
        ours = Path(next(each for each in sys.path if each.endswith("site-packages")))
        (packages / "extras.pth").write_text(f"{ours}\n", encoding="utf-8")

    def python(self, *, extras: bool) -> Path:
        return (self._extras if extras else self._bare) / "bin/python"

    def own(self, directory: Path) -> Path:
        """The Python of a further bare environment: a page that installs takes the package away for a moment."""
        _make_environment(directory)
        _pip("install", "--no-index", str(self._wheel), python=directory / "bin/python")
        return directory / "bin/python"

    def variables(self, python: Path, *, engines: bool) -> dict[str, str]:
        """The environment of a page's commands: the virtual environment is active, and the image store is our own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "VIRTUAL_ENV"))}
        kept |= {
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(python.parent.parent),
            "PIP_FIND_LINKS": str(self._scratch / "wheels"),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
            "REPOSITORY": str(ROOT),
        }
        if not engines:
            kept["DUTYFREE_STATE_DIR"] = str(self._scratch / "state")
            kept.pop("DUTYFREE_IMAGE", None)
        return kept

    def has(self, need: str) -> bool:
        """Whether this machine has what a block needs. Raises Mistake for an unknown word."""
        with self._lock:
            if need not in self._found:
                self._found[need] = self._look_for(need)
            return self._found[need]

    def _look_for(self, need: str) -> bool:
        if need.startswith("image:"):
            return _works("docker", "image", "inspect", need.removeprefix("image:"))
        match need:
            case "root":
                return os.geteuid() == 0
            case "docker":
                return _works("docker", "version")
            case "engines":
                return bool(os.environ.get("DUTYFREE_ENGINES") and os.environ.get("DUTYFREE_IMAGE"))
            case "index":
                fetch = ("--quiet", "--no-deps", "--timeout", "5", "--retries", "1", "--dest", str(self._scratch))
                return _works(str(self._bare / "bin/python"), "-m", "pip", "download", *fetch, "iniconfig")
            case "pypi.org":
                return _reaches("pypi.org")
            case _:
                raise Mistake(f"no block can need {need!r}")


def copy_repository(directory: Path, environment: Path) -> None:
    """What a clone has, as it is now, with a set-up that is finished: `.venv` is the page's virtual environment."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            target = directory / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target)
    (directory / ".venv").symlink_to(environment)
    (environment / "ready").touch()


def _make_environment(directory: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", directory], check=True)


def _pip(*words: str, python: str | Path = sys.executable) -> None:
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(command)}\n{done.stdout}")


def _reaches(name: str) -> bool:
    """Whether it is there under a public address: a mirror under a private one is refused by egress rules."""
    try:
        with socket.create_connection((name, 443), 5) as connection:
            return ipaddress.ip_address(connection.getpeername()[0]).is_global
    except OSError:
        return False


def _works(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
