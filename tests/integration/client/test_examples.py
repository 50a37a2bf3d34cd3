"""The examples, run as they stand, in cells. The blocks of the documentation are run by `make docs-test`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dutyfree
from support.engines import engine, engine_variables
from support.repository import ROOT

EXAMPLES = ROOT / "examples"
PORT = EXAMPLES / "docker_exec_port"
FIFTY_TASKS = EXAMPLES / "fifty_tasks.py"
"""It needs attrs from PyPI: it has a test of its own."""
PROGRAMS = sorted({*EXAMPLES.glob("*.py"), PORT / "after.py"} - {FIFTY_TASKS})
SHORT = (EXAMPLES / "grpo_group.py", FIFTY_TASKS, PORT / "before.py", PORT / "after.py")
"""What users port first: each must be seen whole."""


@pytest.fixture(scope="module", autouse=True)
def _cells() -> None:
    try:
        with dutyfree.sync.local("cell"):
            pass
    except dutyfree.SubstrateUnavailable as error:
        pytest.skip(f"examples in cells: {error}")


def output_of(program: Path, *arguments: str, **variables: str) -> str:
    # Cells of an ordinary user lack limits, and say so.
    done = subprocess.run(
        [sys.executable, "-W", "ignore:not enforced here", program, *arguments],
        capture_output=True,
        text=True,
        timeout=250,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("attrs")
def test_announced_tasks_find_their_sandboxes_ready(attrs_directory: Path, tmp_path: Path) -> None:
    """Ten tasks in place of fifty, and one file of the attrs tests."""
    (tmp_path / "state").mkdir(mode=0o700)
    arguments = (str(attrs_directory), "2", "tests/test_version_info.py")
    printed = output_of(FIFTY_TASKS, *arguments, DUTYFREE_STATE_DIR=str(tmp_path / "state"))
    found = re.match(r"10 of 10 tasks done, (\d+) passed\nbill of 10 leases .*?\n +leases +(\d+) of 10 warm", printed)
    taxed = re.search(r"\n +tax .* \(([\d.]+) % of the work\)", printed)
    assert found is not None, printed
    assert taxed is not None, printed
    passed, hits, tax = int(found[1]), int(found[2]) * 10, float(taxed[1])
    assert passed == 8, "the bug in `version_info` fails its tests, the others do not"
    assert hits > 95
    assert tax < 1


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_the_program_runs(program: Path) -> None:
    assert output_of(program)


def test_in_the_program_of_a_group_only_the_right_attempt_is_rewarded() -> None:
    rewards = dict(line.split(",")[0].split(": reward ") for line in output_of(EXAMPLES / "grpo_group.py").splitlines())

    assert rewards == {"right": "1.0", "wrong": "0.0", "exits": "0.0", "guess": "0.0"}


@pytest.mark.parametrize("program", SHORT, ids=lambda path: path.name)
def test_the_program_can_be_seen_whole(program: Path) -> None:
    assert len(program.read_text(encoding="utf-8").splitlines()) < 45


def test_a_docker_exec_loop_and_its_port_give_the_same_rewards() -> None:
    substrate = engine("docker")
    try:
        with dutyfree.sync.local(substrate) as host, host.lease() as box:  # the engine now has the image
            assert box.run("python3 -c pass").ok
    except dutyfree.SubstrateUnavailable as error:
        pytest.skip(f"docker: {error}")
    docker_host = engine_variables().get("DOCKER_HOST", os.environ.get("DOCKER_HOST", ""))
    listed = subprocess.run(
        ["docker", "-H", docker_host, "image", "ls", "-q", "dutyfree/*"], capture_output=True, text=True, timeout=60
    )
    image = listed.stdout.split()[0]

    before = output_of(PORT / "before.py", image, DOCKER_HOST=docker_host)

    assert before == "[0] 0.0\n[1] 1.0\n[2] 0.0\n"
    assert output_of(PORT / "after.py") == before
