"""Hosts of every kind that this machine can make: each is a few mounts in a mount namespace of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIFE = Path(__file__).with_name("life.py")
USER = 63017
TIMEOUT_S = 90.0


@dataclass(frozen=True)
class Lived:
    """What a life on a host said."""

    unenforced: dict[str, str]
    reasons: list[str]
    capabilities: list[str]
    seen: list[str]


def live(script: str, *lines: str, rootless: bool, directory: Path, env: dict[str, str] | None = None) -> Lived:
    """Live on a host; `lines` are run in the cell."""
    return read(run(script, LIFE, *lines, rootless=rootless, directory=directory, env=env))


def run(
    script: str, program: Path, *words: str, rootless: bool, directory: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Make a host by a shell script, as root, and run a Python program on it.

    An ordinary user's id has no name and no groups; its home is `directory`.
    """
    place = {} if "DUTYFREE_STATE_DIR" in (env or {}) else {"DUTYFREE_STATE_DIR": str(directory)}
    settings = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    settings |= {"HOME": str(directory), "TMPDIR": str(directory), **place, **(env or {})}
    user = [*(["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"] if rootless else [])]
    clean = ["env", "-i", *(f"{name}={value}" for name, value in settings.items() if value)]
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", f'{script}\nexec "$@"', "host"]
    directory.chmod(0o777)
    whole = [*command, *user, *clean, sys.executable, str(program), *words]
    return subprocess.run(whole, capture_output=True, text=True, timeout=TIMEOUT_S)


def read(done: subprocess.CompletedProcess[str]) -> Lived:
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return Lived(**found)
