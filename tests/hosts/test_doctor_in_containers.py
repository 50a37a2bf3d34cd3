"""`dutyfree doctor` inside containers: it names the cause, and with what it says to add, cells work."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from hosts.containers import ALL_OF_PROC, NO_FILTER, ROOTS, engine_with_image, in_container
from support.docker_engine import Engine

IMAGE = "dutyfree-test/python:latest"
STEPS_TO_WORK = 3
"""How often what doctor says may have to be followed: a step that was not tried can fail for a reason of its own."""
USER = ("--user", "1000", "--tmpfs", "/tmp:exec", "--env", "HOME=/tmp")
DROPPED = ("--cap-drop", "ALL")

pytestmark = pytest.mark.xdist_group("doctor-in-containers")  # they share an image


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with engine_with_image(IMAGE) as engine:
        yield engine


def _in_container(engine: Engine, flags: tuple[str, ...], *arguments: str) -> subprocess.CompletedProcess[str]:
    return in_container(engine, IMAGE, flags, "-m", "dutyfree", *arguments)


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
