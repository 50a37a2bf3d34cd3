"""`dutyfree doctor` inside containers: it names the cause, and with what it says to add, cells work."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docker_engine import ROOT, Engine, any_engine
from dutyfree.native import spawner_path

IMAGE = "dutyfree-test/python:latest"
PYTHON = os.path.realpath(sys.executable)
STEPS_TO_WORK = 3
"""How often what doctor says may have to be followed: a step that was not tried can fail for a reason of its own."""
NO_FILTER = ("--security-opt", "seccomp=unconfined")
ALL_OF_PROC = ("--security-opt", "systempaths=unconfined")
USER = ("--user", "1000", "--tmpfs", "/tmp:exec", "--env", "HOME=/tmp")
DROPPED = ("--cap-drop", "ALL")
ROOTS = ("--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN", "--cap-add", "SYS_PTRACE")

pytestmark = pytest.mark.xdist_group("doctor-in-containers")  # they share an image


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with any_engine() as engine:
        engine.docker("import", "-", IMAGE, stdin=_image())
        yield engine
        engine.docker("rmi", IMAGE)


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
        programs = [Path(PYTHON), *(Path(str(shutil.which(name))) for name in ("sh", "true"))]
        needed = {line for program in [*programs, *library.glob("lib-dynload/*.so")] for line in _libraries(program)}
        for path in [*programs, *map(Path, sorted(needed))]:
            archive.add(path, str(path.parent.resolve() / path.name))
        archive.add(library, str(library), filter=_stdlib_only)
    return buffer.getvalue()


def _libraries(program: Path) -> list[str]:
    told = subprocess.run(["ldd", program], capture_output=True, text=True, timeout=60).stdout
    return re.findall(r"(/\S+) \(0x", told)


def _stdlib_only(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    unneeded = ("__pycache__", "test", "dist-packages", "site-packages", "idlelib", "ensurepip", "lib2to3")
    return None if Path(entry.name).name in unneeded or "/config-" in entry.name else entry


def _in_container(engine: Engine, flags: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    shared = [f"{ROOT / 'src'}:/dutyfree:ro", f"{spawner_path().parent}:/native:ro"]
    mounts = [word for each in shared for word in ("--volume", each)]
    variables = ["PYTHONPATH=/dutyfree", "PYTHONDONTWRITEBYTECODE=1", "DUTYFREE_NATIVE_DIR=/native"]
    settings = [word for each in variables for word in ("--env", each)]
    command = ["docker", "-H", engine.host, "run", "--rm", "--network", "none", *mounts, *settings, *flags, IMAGE]
    return subprocess.run([*command, PYTHON, "-m", "dutyfree", *arguments], capture_output=True, text=True, timeout=90)


def _cell(engine: Engine, flags: tuple[str, ...]) -> dict[str, Any]:
    done = _in_container(engine, flags, "doctor", "--json", "cell")
    assert done.stdout, done.stderr
    (cell,) = json.loads(done.stdout)["substrates"]
    assert isinstance(cell, dict)
    return cell


def _flags_in(remedies: list[str]) -> tuple[str, ...]:
    """What is to be added to `docker run`."""
    lines = [match[1] for remedy in remedies if (match := re.search(r"add to docker run: ([^;]*)", remedy))]
    return tuple(word for line in lines for word in line.split())


FEW = "root has no capability"
MASKED = "parts of /proc are hidden"


@pytest.mark.parametrize(
    ("flags", "works", "blamed"),
    [
        pytest.param((), False, {"filter": "refuses unshare", "few-capabilities": FEW}, id="plain"),
        pytest.param(NO_FILTER, True, {"masked-proc": MASKED, "few-capabilities": FEW}, id="no filter"),
        pytest.param((*NO_FILTER, *ALL_OF_PROC), True, {"few-capabilities": FEW}, id="no filter, all of /proc"),
        pytest.param(
            ("--cap-add", "SYS_ADMIN"),
            False,
            {"filter": "refuses pivot_root", "masked-proc": MASKED, "few-capabilities": FEW},
            id="SYS_ADMIN",
        ),
        pytest.param(ROOTS, False, {"filter": "refuses pivot_root"}, id="root's capabilities"),
        pytest.param((*ROOTS, *NO_FILTER), True, {}, id="root's capabilities, no filter"),
        pytest.param(
            (*DROPPED, *NO_FILTER),
            False,
            {"capability": "root has no capability SETFCAP", "few-capabilities": FEW},
            id="no capability, no filter",
        ),
        pytest.param(USER, False, {"filter": "refuses unshare"}, id="user"),
        pytest.param((*USER, *NO_FILTER), True, {"masked-proc": MASKED}, id="user, no filter"),
        pytest.param((*USER, *DROPPED, *NO_FILTER, *ALL_OF_PROC), True, {}, id="user, no filter, all of /proc"),
        pytest.param(
            ("--user", "1000", *NO_FILTER, *ALL_OF_PROC),
            True,
            {"state-directory": "no lasting directory"},
            id="no home",
        ),
    ],
)
def test_the_cause_is_named_and_what_is_said_mends_it(
    engine: Engine, flags: tuple[str, ...], works: bool, blamed: dict[str, str]
) -> None:
    found = _cell(engine, flags)
    assert found["works"] == works
    causes = {cause["name"]: cause for cause in found["causes"] if cause["name"] != "limits"}
    assert {name: blamed.get(name, "") for name in causes} == blamed, causes
    assert all(blamed[name] in cause["what"] for name, cause in causes.items())
    for _ in range(STEPS_TO_WORK):
        added = _flags_in([cause["remedy"] for cause in found["causes"]])
        if not added:
            break
        failed = {name for cause in found["causes"] for name in cause["steps"]}
        flags += added
        found = _cell(engine, flags)
        outcomes = {step["name"]: step["outcome"] for step in found["steps"]}
        assert {outcomes[name] for name in failed} <= {"ok"}, f"{added} did not mend {failed}"
    assert found["works"], found
    assert {step["outcome"] for step in found["steps"]} == {"ok"}


def test_run_says_the_same_and_no_bare_errno(engine: Engine) -> None:
    done = _in_container(engine, (), "run", "--", "true")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: cells cannot be made here: the container engine's system call filter (seccomp)")
    added = _flags_in([hint])
    assert added == NO_FILTER
    assert "Operation not permitted" not in done.stderr
    assert _in_container(engine, added, "run", "--", "true").returncode == 0
