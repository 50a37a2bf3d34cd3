"""Root that has not all capabilities makes cells as an ordinary user does: their root then has the id of the host's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FEWER = ("setpriv", "--bounding-set", "-net_admin")
IN_USER_NAMESPACE = ("unshare", "--user", "--map-root-user")
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="takes root to have root's id")


@pytest.mark.parametrize("prefix", [FEWER, IN_USER_NAMESPACE], ids=["fewer capabilities", "user namespace"])
@pytest.mark.parametrize("name", ["sys/kernel/core_pattern", "sys/vm/swappiness", "sysrq-trigger"])
def test_no_setting_of_the_machine_can_be_written(prefix: tuple[str, ...], name: str, tmp_path: Path) -> None:
    if shutil.which(prefix[0]) is None:
        pytest.skip(f"{prefix[0]} of util-linux is missing")
    line = f"test -e /proc/{name} || exit 0; test ! -w /proc/{name}"
    command = [*prefix, sys.executable, "-m", "dutyfree", "run", "--", "sh", "-c", line]
    environment = {**os.environ, "DUTYFREE_STATE_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stderr
