"""CPython's own tests, from Debian's package of them, run by the Python that Debian has installed."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from comparison import Outcome, Outcomes
from suite import NotReady, Suite, command, pack

PYTHON = "/usr/bin/python3"
MODULES = (
    "os", "posix", "posixpath", "genericpath", "pathlib", "stat", "shutil", "tempfile", "glob", "filecmp", "fileio",
    "file", "largefile", "fcntl", "mmap", "tarfile", "select", "poll", "epoll", "selectors", "signal", "threadsignals",
    "subprocess", "popen", "pty", "openpty", "resource", "pwd", "grp", "socket",
    "threading", "thread", "queue", "wait3", "wait4", "fork1", "eintr", "time", "platform", "faulthandler",
    "multiprocessing_fork", "multiprocessing_forkserver", "multiprocessing_spawn",
)  # fmt: skip
HANGING = ("test_4_daemon_threads",)
"""Tests that may wait forever, wherever they run: a daemon thread holds up the interpreter's end."""
HANG_S = 240
"""After so long without an end of one test, regrtest gives the module up."""


class CPython(Suite):
    """The parts that ask the most of the system. Each module is a unit."""

    name = "cpython"

    def prepare(self, directory: Path) -> Path:
        version = command(PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
        archive = directory / f"cpython-{version}.tar"
        if archive.exists():
            return archive
        with tempfile.TemporaryDirectory(dir=directory) as name:
            build = Path(name)
            command("apt-get", "download", f"libpython{version}-testsuite", cwd=build)
            packages = list(build.glob("*.deb"))
            if len(packages) != 1:
                raise NotReady("apt-get downloaded no package of tests")
            command("dpkg-deb", "-x", packages[0], build)
            # Debian splits the package `test` in two: its frame comes with the standard library.
            installed, tests = Path(f"/usr/lib/python{version}/test"), build / f"usr/lib/python{version}/test"
            shutil.copytree(installed, tests, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
            (build / "lib").mkdir()
            tests.rename(build / "lib" / "test")
            return pack(build / "lib", archive)

    def units(self) -> list[str]:
        return [f"test_{module}" for module in MODULES]

    def script(self, unit: str) -> str:
        ignored = " ".join(f"-i {test}" for test in HANGING)
        return (
            f"PYTHONPATH=$PWD {PYTHON} -m test --timeout {HANG_S} {ignored} --junit-xml $PWD/results.xml {unit} 1>&2;"
            " test -e results.xml && exec cat results.xml"
        )

    def outcomes(self, unit: str, output: str) -> Outcomes:
        if not output.strip():
            return {}
        found: dict[str, Outcome] = {}
        for case in ElementTree.fromstring(output).iter("testcase"):
            name = case.get("name", "").removeprefix("test.")
            outcome = Outcome.PASSED
            if case.find("error") is not None or case.find("failure") is not None:
                outcome = Outcome.FAILED
            elif case.get("result") == "skipped" or case.find("skipped") is not None:
                outcome = Outcome.SKIPPED
            if found.get(name) is not Outcome.FAILED:  # subtests bear the same name
                found[name] = outcome
        return found
