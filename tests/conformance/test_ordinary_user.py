"""The suite once more, as a user with no privileges: run by root, since only root can become somebody else.

Through the guard, as users have it: of privileges it knows nothing, so that what it changes is judged as root.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import dutyfree
from conformance.company import is_alone
from dutyfree import native
from dutyfree.errors import SubstrateUnavailable
from dutyfree.testing import all_checks

LIMIT_S = 600

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user"),
    pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing: install util-linux"),
]


@pytest.fixture
def stranger() -> Iterator[tuple[int, Path]]:
    """A user id that nobody has, and a home with a copy of the package: ours may lie where strangers cannot look."""
    uid = 60_000 + os.getpid() % 4_000
    # Not tmp_path: pytest closes its directories to everybody else.
    home = Path(tempfile.mkdtemp(prefix="stranger-", dir="/tmp"))
    try:
        shutil.copytree(Path(dutyfree.__file__).parent, home / "lib" / "dutyfree")
        programs = home / "programs"
        programs.mkdir()
        for program in (native.guest_path, native.spawner_path):
            try:
                shutil.copy2(program(), programs)
            except SubstrateUnavailable:
                continue
        home.chmod(0o755)
        os.chown(home, uid, uid)
        yield uid, home
    finally:
        shutil.rmtree(home)


@pytest.mark.timeout(LIMIT_S + 60)
@pytest.mark.parametrize("alone", [False, pytest.param(True, marks=pytest.mark.alone)], ids=["beside", "alone"])
@pytest.mark.parametrize("substrate", ["process", "cell"])
def test_an_ordinary_user_gets_the_same_promises(
    stranger: tuple[int, Path], substrate: str, alone: bool, not_run: list[str]
) -> None:
    uid, home = stranger
    interpreter = Path(sys.executable).resolve()
    become = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--no-new-privs"]
    only = [f"--only={check.id}" for check in all_checks() if is_alone(check, substrate) is alone]
    judge = [str(interpreter), "-m", "dutyfree.testing", substrate, "--json", "--guarded", *only]
    environment = {
        "HOME": str(home),
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(home / "lib"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "DUTYFREE_NATIVE_DIR": str(home / "programs"),
    }
    seen = subprocess.run([*become, *judge], env=environment, cwd=home, capture_output=True, text=True, timeout=LIMIT_S)
    if seen.returncode == 3:
        not_run.append(f"{substrate} as an ordinary user: {seen.stderr.strip()}")
        pytest.skip(seen.stderr.strip())
    assert seen.returncode in (0, 1), seen.stderr
    report = json.loads(seen.stdout)
    failed = {one["id"]: one["reason"] for one in report["checks"] if one["outcome"] == "failed"}
    not_run += [
        f"{substrate} as an ordinary user: {one['id']}: {one['reason']}"
        for one in report["checks"]
        if one["outcome"] == "not run"
    ]
    assert failed == {}
    if all(one["outcome"] == "not run" for one in report["checks"]):
        pytest.skip("none of these checks applies to an ordinary user; each is named at the end")
    assert report["ok"]
