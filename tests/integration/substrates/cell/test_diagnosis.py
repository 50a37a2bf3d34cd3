"""`dutyfree doctor` on real hosts that lack something: it names the cause."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dutyfree.images.ownership import ROOT_CAPABILITIES
from dutyfree.native import spawner_path
from dutyfree.substrates.cell.diagnosis.trial import STEPS, run_trial

CALLS = ("unshare", "mount", "umount2", "setns", "clone3", "open_tree", "mount_setattr", "openat2", "close_range")


def test_the_program_tries_every_step_and_leaves_nothing() -> None:
    mounts = subprocess.run(["cat", "/proc/self/mountinfo"], capture_output=True).stdout
    as_root = os.geteuid() == 0
    tried = run_trial(spawner_path(), as_root=as_root)
    names = [step.name for step in tried.steps]
    assert names == [name for name in STEPS if name in names]
    assert set(STEPS) == {*names} if as_root else {*names} < set(STEPS)
    assert set(CALLS) < set(tried.calls)
    assert subprocess.run(["cat", "/proc/self/mountinfo"], capture_output=True).stdout == mounts


def doctor(*prefix: str, state: Path) -> dict[str, Any]:
    command = [*prefix, sys.executable, "-m", "dutyfree", "doctor", "--json", "cell"]
    environment = {**os.environ, "DUTYFREE_STATE_DIR": str(state)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    (cell,) = json.loads(done.stdout)["substrates"]
    return dict(cell)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="takes root, and setpriv of util-linux")
@pytest.mark.parametrize("capability", sorted(ROOT_CAPABILITIES))
def test_the_missing_capability_is_named(capability: str, tmp_path: Path) -> None:
    found = doctor("setpriv", "--bounding-set", f"-{capability.lower()}", state=tmp_path)
    causes = {cause["name"]: cause for cause in found["causes"]}
    assert causes["few-capabilities"]["what"] == f"root has no capability {capability} here"
    assert capability in causes["few-capabilities"]["remedy"]
    assert found["works"] == (capability != "SETFCAP")
    assert found["works"] or causes["capability"]["what"] in found["problem"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="takes root, and unshare of util-linux")
@pytest.mark.parametrize(
    ("kind", "most", "cause"),
    [
        pytest.param("user", 0, "user.max_user_namespaces is 0", id="cells cannot be opened"),
        pytest.param(
            "net", 1, "as many net namespaces exist as user.max_net_namespaces allows", id="none can be created"
        ),
    ],
)
def test_the_limit_on_namespaces_is_named(kind: str, most: int, cause: str, tmp_path: Path) -> None:
    # A user namespace has limits of its own, so that nothing of the machine's is changed.
    shell = f'echo {most} > /proc/sys/user/max_{kind}_namespaces && exec "$@"'
    found = doctor("unshare", "--user", "--map-root-user", "sh", "-c", shell, "sh", state=tmp_path)
    assert not found["works"]
    assert cause in found["problem"]
    assert f"sysctl -w user.max_{kind}_namespaces=65536" in found["hint"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="takes root, and unshare of util-linux")
def test_a_chroot_is_named(tmp_path: Path) -> None:
    shell = """cd "$1" && shift && for each in /*; do
        if [ -L "$each" ]; then cp -P "$each" .
        elif [ -d "$each" ]; then mkdir ".$each" && mount --rbind "$each" ".$each"; fi
    done; exec chroot . "$@"
    """
    new_root = tmp_path / "root"
    new_root.mkdir()
    found = doctor("unshare", "--mount", "sh", "-c", shell, "sh", str(new_root), state=tmp_path)
    assert not found["works"]
    assert "this is a chroot" in found["problem"]
    assert "systemd-nspawn" in found["hint"]
