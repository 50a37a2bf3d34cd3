"""Getting pinned files from whatever package index pip is configured for, each checked against its digest."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dutyfree.errors import InfraFailed, SubstrateUnavailable

TIMEOUT_S: Final = 300.0
_TAIL_CHARACTERS: Final = 600
_OFFLINE: Final = (
    "this needs a package index once: connect, or let pip find one (PIP_INDEX_URL, PIP_FIND_LINKS), or copy the "
    "directory of materials from a machine that has it"
)
# Before pip gives a source distribution away it asks that package's build backend for the version. That would fetch the
# backend, too, and run it. This answers in its place: what is in the file is vouched for by its digest.
_STAND_IN: Final = """\
import pathlib

def get_requires_for_build_wheel(config_settings=None):
    return []

def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    info = pathlib.Path(metadata_directory, "{name}-{version}.dist-info")
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return info.name
"""


@dataclass(frozen=True, slots=True)
class Pinned:
    """One file of a package index."""

    name: str
    version: str
    sha256: str
    backend: str = ""
    """Of a source distribution, the module that builds it; empty for a wheel."""

    @property
    def requirement(self) -> str:
        """As a line of a requirements file."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n"


def fetch(pins: Sequence[Pinned], directory: Path, *, timeout_s: float = TIMEOUT_S) -> None:
    """Put the files into `directory`, wheels and source distributions alike, and nothing else.

    Raises InfraFailed when the index cannot be reached, has them not, or has others under their names, and
    SubstrateUnavailable where this Python has no pip.
    """
    sources = [pin for pin in pins if pin.backend]
    with tempfile.TemporaryDirectory() as scratch:
        wanted = Path(scratch, "requirements.txt")
        wanted.write_text("".join(pin.requirement for pin in pins))
        for pin in sources:
            _stand_in(pin, Path(scratch))
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
        command += ["--require-hashes", "--no-deps", "--no-build-isolation", "--dest", str(directory)]
        command += ["--only-binary", ":all:", *(word for pin in sources for word in ("--no-binary", pin.name))]
        _run([*command, "--requirement", str(wanted)], Path(scratch), timeout_s)


def _stand_in(pin: Pinned, directory: Path) -> None:
    module = directory / (pin.backend.replace(".", "/") + ".py")
    module.parent.mkdir(parents=True, exist_ok=True)
    for package in module.relative_to(directory).parents[:-1]:
        (directory / package / "__init__.py").touch()  # or an installed package of that name would come first
    module.write_text(_STAND_IN.format(name=pin.name, version=pin.version))


def _run(command: Sequence[str], modules: Path, timeout_s: float) -> None:
    path = os.pathsep.join([str(modules), *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            command,
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired as error:
        raise InfraFailed(f"pip was not done after {timeout_s:g} s", hint=_OFFLINE) from error
    if "No module named pip" in done.stderr:
        hint = f"`{sys.executable} -m ensurepip`, or install Dutyfree where pip is"
        raise SubstrateUnavailable("this Python has no pip, which fetches the materials of workloads", hint=hint)
    if done.returncode:
        said = done.stderr.strip()[-_TAIL_CHARACTERS:]
        raise InfraFailed(f"the materials of the workload could not be fetched: {said}", hint=_OFFLINE)
