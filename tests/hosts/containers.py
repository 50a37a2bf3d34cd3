"""Docker containers as hosts: a root with Python, from this machine, and Dutyfree mounted into it."""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dutyfree.native import spawner_path
from support.docker_engine import Engine, any_engine
from support.repository import ROOT

PYTHON = os.path.realpath(sys.executable)
NO_FILTER = ("--security-opt", "seccomp=unconfined")
ALL_OF_PROC = ("--security-opt", "systempaths=unconfined")
ROOTS = ("--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN", "--cap-add", "SYS_PTRACE")


@contextmanager
def engine_with_image(name: str) -> Iterator[Engine]:
    """An engine that has the image under this name. Skips where there is none."""
    with any_engine() as engine:
        engine.docker("import", "-", name, stdin=_image())
        yield engine
        engine.docker("rmi", name)


def _image() -> bytes:
    """A root with Python, a shell and what they need, from this machine."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", dereference=True) as archive:
        for name, mode in {
            "tmp": 0o1777,
            "var": 0o755,
            "run": 0o755,
            "proc": 0o755,
            "sys": 0o755,
            "dev": 0o755,
        }.items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            archive.addfile(entry)
        for link in (path for path in map(Path, ("/bin", "/sbin", "/lib", "/lib64")) if path.is_symlink()):
            entry = tarfile.TarInfo(link.name)
            entry.type, entry.linkname = tarfile.SYMTYPE, str(link.readlink())
            archive.addfile(entry)
        library = Path(sysconfig.get_path("stdlib"))
        programs = [Path(PYTHON), *(Path(str(shutil.which(name))) for name in ("sh", "true", "sleep"))]
        needed = {line for program in [*programs, *library.glob("lib-dynload/*.so")] for line in _libraries(program)}
        for path in [*programs, *map(Path, sorted(needed))]:
            archive.add(path, str(path.parent.resolve() / path.name))
        archive.add(library, str(library), filter=_stdlib_only)
    return buffer.getvalue()


def _libraries(program: Path) -> list[str]:
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=60).stdout
    return re.findall(r"(/\S+) \(0x", listed)


def _stdlib_only(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    unneeded = ("__pycache__", "test", "dist-packages", "site-packages", "idlelib", "ensurepip", "lib2to3")
    return None if Path(entry.name).name in unneeded or "/config-" in entry.name else entry


def in_container(
    engine: Engine, image: str, flags: tuple[str, ...], *arguments: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in a container with these flags."""
    shared = [
        f"{ROOT / 'src'}:/dutyfree:ro",
        f"{Path(__file__).parent}:/hosts:ro",
        f"{spawner_path().parent}:/native:ro",
    ]
    mounts = [word for each in shared for word in ("--volume", each)]
    variables = ["PYTHONPATH=/dutyfree", "PYTHONDONTWRITEBYTECODE=1", "DUTYFREE_NATIVE_DIR=/native"]
    settings = [word for each in variables for word in ("--env", each)]
    command = ["docker", "-H", engine.host, "run", "--rm", "--network", "none", *mounts, *settings, *flags, image]
    return subprocess.run([*command, PYTHON, *arguments], capture_output=True, text=True, timeout=90)
