"""Docker engines for tests: the one that is there, or one of our own."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.engines import engine_variables
from support.repository import ROOT

SCRIPT = ROOT / "scripts/docker-engine"
BARE_IMAGE = "dutyfree-test/bare:latest"


@dataclass(frozen=True)
class Engine:
    """A running engine; `directory` is that of one of our own."""

    host: str
    directory: Path | None = None

    def docker(self, *arguments: str, stdin: bytes | None = None) -> str:
        """What the command line client says."""
        command = ["docker", "-H", self.host, *arguments]
        done = subprocess.run(command, capture_output=True, input=stdin, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode().strip()

    def lines(self, *arguments: str) -> set[str]:
        return set(self.docker(*arguments).split())

    def import_bare_image(self) -> str:
        """An image with nothing in it: no shell, no C library, an empty directory."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            directory = tarfile.TarInfo("tmp")
            directory.type, directory.mode = tarfile.DIRTYPE, 0o1777
            archive.addfile(directory)
        if BARE_IMAGE not in self.lines("images", "--format", "{{.Repository}}:{{.Tag}}"):
            self.docker("import", "-", BARE_IMAGE, stdin=buffer.getvalue())
        return BARE_IMAGE

    def start(self) -> None:
        """Start it again."""
        assert self.directory is not None
        subprocess.run([SCRIPT, "start", self.directory], check=True, capture_output=True, timeout=90)

    @property
    def pid(self) -> int:
        assert self.directory is not None
        return int((self.directory / "docker.pid").read_text())


@contextmanager
def own_engine() -> Iterator[Engine]:
    """An engine that a test may kill. Skips where none can be started."""
    for program in ("dockerd", "docker"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing: install docker.io")
    if os.geteuid() != 0:
        pytest.skip("only root can start a Docker engine")
    # A short path: it holds a socket.
    with tempfile.TemporaryDirectory(prefix="engine-", dir="/tmp", ignore_cleanup_errors=True) as home:
        started = subprocess.run([SCRIPT, "start", home], capture_output=True, text=True, timeout=90)
        try:
            if started.returncode:
                pytest.skip(f"dockerd cannot run here: {started.stderr.strip()[-200:]}")
            yield Engine(started.stdout.strip(), Path(home))
        finally:
            subprocess.run([SCRIPT, "stop", home], check=True, timeout=60)
            assert not _engines_below(home), "an engine was not stopped"


def _engines_below(home: str) -> str:
    """The numbers of engines that have their files there."""
    command = ["pgrep", "--full", "--", f"--pidfile {home}/"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


@contextmanager
def any_engine() -> Iterator[Engine]:
    """The engine that DOCKER_HOST names, or that `make engines` prepared, or else one of our own."""
    host = os.environ.get("DOCKER_HOST") or engine_variables().get("DOCKER_HOST")
    if host and _answers(host):
        yield Engine(host)
        return
    with own_engine() as engine:
        yield engine


def _answers(host: str) -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "-H", host, "version"], capture_output=True, timeout=60).returncode == 0
