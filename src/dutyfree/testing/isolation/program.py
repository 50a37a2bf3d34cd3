"""The probe program: compiles it on the host, and parses the one line that it prints in a sandbox.

It is static C because a sandbox may have no Python, and because most probes are single system calls.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from dutyfree.model import Observation

SOURCES = Path(__file__).parent / "probe"
COMPILE_TIMEOUT_S = 120
MAX_LINE_BYTES = 8192


class CannotCompile(Exception):
    """The probe program cannot be built on this machine."""


def compile_program(directory: str | os.PathLike[str]) -> Path:
    """Build the probe program in `directory` and return its path. Raises CannotCompile."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise CannotCompile("there is no C compiler (gcc or cc)")
    target = Path(directory) / "probe"
    sources = sorted(str(source) for source in SOURCES.glob("*.c"))
    flags = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-static", "-pthread"]
    try:
        done = subprocess.run(
            [compiler, *flags, "-o", str(target), *sources], capture_output=True, timeout=COMPILE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(str(error)) from error
    if done.returncode != 0:
        raise CannotCompile(done.stderr.decode("utf-8", "replace")[-2000:])
    return target


class Verdict(StrEnum):
    """The first word that the probe program prints."""

    ALLOWED = "allowed"
    DENIED = "denied"
    VALUE = "value"
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Answer:
    """The probe program's output line. The sandbox wrote it, so callers only compare it and do not trust it."""

    question: str
    verdict: Verdict
    text: str

    def __str__(self) -> str:
        return f"{self.question}: {self.verdict}{' ' if self.text else ''}{self.text[:200]}"


def read_answer(question: str, seen: Observation) -> Answer:
    """Parse the probe program's observation; a program that a signal ended counts as denied by that signal."""
    return parse_answer(question, seen.stdout, seen.signal, seen.stderr)


def parse_answer(question: str, stdout: bytes, signal: int | None, stderr: bytes = b"") -> Answer:
    """Parse the probe program's raw output."""
    line, _, rest = stdout[:MAX_LINE_BYTES].partition(b"\n")
    word, _, text = line.decode("utf-8", "replace").partition(" ")
    if not stdout and signal is not None:
        return Answer(question, Verdict.DENIED, f"by signal {signal}")
    if rest or word not in set(Verdict):
        said = (stdout[:100] + stderr[:200]).decode("utf-8", "replace")
        return Answer(question, Verdict.BROKEN, f"the probe program gave no answer: {said!r}")
    if word == Verdict.DENIED and text.isdigit():
        text = errno.errorcode.get(int(text), text)
    return Answer(question, Verdict(word), text)
