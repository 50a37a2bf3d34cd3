"""What a suite is: files that are got ready once, and units of tests that run one after the other."""

from __future__ import annotations

import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

from comparison import Outcomes

FETCH_TIMEOUT_S = 300
BUILD_TIMEOUT_S = 1200


class NotReady(Exception):
    """A suite cannot be got ready here; the message says why."""


class Suite(ABC):
    """Somebody else's tests."""

    name: str

    @abstractmethod
    def prepare(self, directory: Path) -> Path:
        """The archive of its files, made in `directory` unless it is there already. Raises NotReady."""

    @abstractmethod
    def units(self) -> list[str]:
        """What can be run by itself."""

    @abstractmethod
    def script(self, unit: str) -> str:
        """Runs a unit; what it writes to its output is for `outcomes`."""

    @abstractmethod
    def outcomes(self, unit: str, output: str) -> Outcomes:
        """How each test ended."""


def command(*words: str | Path, cwd: Path | None = None, timeout_s: int = FETCH_TIMEOUT_S) -> str:
    """The output of a program. Raises NotReady if it fails."""
    try:
        done = subprocess.run(
            [str(word) for word in words], cwd=cwd, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise NotReady(f"{words[0]}: {error}") from None
    if done.returncode != 0:
        raise NotReady(f"{words[0]} failed: {' '.join(done.stderr.strip().splitlines()[-2:])}")
    return done.stdout


def pack(tree: Path, archive: Path) -> Path:
    """The tree as an archive that is there whole or not at all."""
    partial = archive.with_suffix(".partial")
    command("tar", "-c", "--owner=0", "--group=0", "-f", partial, "-C", tree, ".")
    partial.rename(archive)
    return archive
