"""Where tests run: on the bare host or in a cell, as root or as an ordinary user. The same script runs everywhere."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ORDINARY_USER = 63017
"""Like that of `scripts/as-ordinary-user`: an id that nobody has."""
PYTHON = str(Path(sys.executable).resolve())
"""Not that of a virtual environment, which may lie where an ordinary user cannot read."""
GRACE_S = 60
"""How much later than its own time limit `dutyfree run` is killed."""
MAX_OUTPUT_BYTES = 64 * 1024 * 1024
SEARCHED = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AS_USER = ("setpriv", "--reuid", str(ORDINARY_USER), "--regid", str(ORDINARY_USER), "--clear-groups")


@dataclass(frozen=True, slots=True)
class Comparison:
    """A place in a cell and the place on the bare host that it is held against."""

    name: str
    outside_as_user: bool
    """Whose process it is that the host sees: the bare tests, or `dutyfree`."""
    inside_as_user: bool
    """Whether the tests give root up inside the cell."""


COMPARISONS = (
    Comparison("root", outside_as_user=False, inside_as_user=False),
    Comparison("user", outside_as_user=False, inside_as_user=True),
    Comparison("rootless", outside_as_user=True, inside_as_user=False),
)
"""An ordinary user has the last one only. In a rootless cell the user is root: no other place is like it."""


def comparisons_here() -> list[Comparison]:
    """Those that this user can make."""
    return [each for each in COMPARISONS if os.geteuid() == 0 or each.outside_as_user]


@dataclass(frozen=True, slots=True)
class Job:
    """A script that finds the suite's files in its working directory."""

    files: Path
    """A tar archive."""
    script: str
    timeout_s: int


@dataclass(frozen=True, slots=True)
class Ending:
    """What came of a job."""

    output: str
    log: str
    seconds: float


class Places:
    """Runs jobs. Whatever they leave on the host goes with `places`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._running: set[subprocess.Popen[bytes]] = set()

    def stop(self) -> None:
        """End what runs."""
        for process in list(self._running):
            _kill(process)

    def bare(self, job: Job, *, as_user: bool) -> Ending:
        """On the host, in a directory of its own."""
        directory = Path(tempfile.mkdtemp(prefix="dutyfree-suite-", dir="/tmp"))
        try:
            if as_user and os.geteuid() == 0:
                os.chown(directory, ORDINARY_USER, ORDINARY_USER)
            return self._run(job, directory, ["sh", "-c", _script(job, directory)], as_user=as_user)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def cell(self, job: Job, comparison: Comparison) -> Ending:
        """In a cell of its own, in a directory of a name as on the host."""
        directory = Path("/tmp", f"dutyfree-suite-{os.urandom(4).hex()}")
        inside = ["sh", "-c", _script(job, directory)]
        command = [PYTHON, "-m", "dutyfree", "run", "--quiet", "--timeout", str(job.timeout_s), "--"]
        command += [*AS_USER, *inside] if comparison.inside_as_user else inside
        return self._run(job, directory, command, as_user=comparison.outside_as_user)

    def _run(self, job: Job, directory: Path, command: list[str], *, as_user: bool) -> Ending:
        prefix = [*AS_USER] if as_user and os.geteuid() == 0 else []
        home = self._home / ("user" if as_user else "root")
        env = {"PATH": SEARCHED, "HOME": str(home), "LANG": "C.UTF-8", "PYTHONPATH": str(self._home / "src")}
        start_s = time.monotonic()
        with job.files.open("rb") as files, tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as log:
            process = subprocess.Popen(
                [*prefix, *command], stdin=files, stdout=output, stderr=log, env=env, cwd="/", start_new_session=True
            )
            self._running.add(process)
            try:
                process.wait(job.timeout_s + GRACE_S)
            except subprocess.TimeoutExpired:
                _kill(process)
                process.wait()
            finally:
                self._running.discard(process)
            texts = []
            for file in (output, log):
                file.seek(0)
                text = file.read(MAX_OUTPUT_BYTES).decode("utf-8", "replace")
                texts.append(text.replace(str(directory), "/suite"))  # it is part of some tests' names
        return Ending(texts[0], texts[1], time.monotonic() - start_s)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With its whole group; a cell ends with the `dutyfree` that made it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def places() -> Iterator[Places]:
    """A home for each user, and a copy of the package that all of them can read."""
    with tempfile.TemporaryDirectory(prefix="dutyfree-suites-", dir="/tmp") as name:
        home = Path(name)
        home.chmod(0o755)
        for user in ("root", "user"):
            (home / user).mkdir()
        if os.geteuid() == 0:
            os.chown(home / "user", ORDINARY_USER, ORDINARY_USER)
        package = Path(__file__).resolve().parents[2] / "src" / "dutyfree"
        shutil.copytree(package, home / "src" / "dutyfree", ignore=shutil.ignore_patterns("__pycache__"))
        yield Places(home)


def _script(job: Job, directory: Path) -> str:
    """The same in every place: environment, working directory, an empty input."""
    # `timeout` with -k: on the bare host, nothing else ends the whole group.
    inner = f"timeout -k 10 {job.timeout_s} sh -c {shlex.quote(job.script)}"
    return (
        f"mkdir -p {directory} && cd {directory} && tar -x --no-same-owner -f - && mkdir home tmp && exec </dev/null &&"
        f" exec env -i PATH={SEARCHED} LANG=C.UTF-8 HOME={directory}/home TMPDIR={directory}/tmp USER=tester {inner}"
    )
