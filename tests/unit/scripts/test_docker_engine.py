"""The scripts that start and stop engines for tests: what they must not do to this machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.repository import ROOT

SCRIPTS = ROOT / "scripts"

pytestmark = pytest.mark.skipif(os.name != "posix" or shutil.which("bash") is None, reason="needs bash")


def program(path: Path, line: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


def test_a_stale_process_id_kills_no_other_process(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as stranger:
        try:
            (tmp_path / "docker.pid").write_text(str(stranger.pid))
            subprocess.run([SCRIPTS / "docker-engine", "stop", tmp_path], check=True, timeout=60)
            assert stranger.poll() is None
        finally:
            stranger.kill()


def test_without_our_own_engine_tests_do_not_turn_to_the_machines(tmp_path: Path) -> None:
    program(tmp_path / "scripts" / "docker-engine", f'echo "$1" >> {tmp_path}/asked; [ "$1" = stop ]')
    shutil.copy(SCRIPTS / "engines", tmp_path / "scripts")
    for name, line in {"id": "echo 0", "dockerd": "false", "dutyfree": "true"}.items():
        program(tmp_path / "bin" / name, line)
    program(tmp_path / ".build/engines/runsc/usr/bin/runsc", "true")
    program(tmp_path / ".build/engines/kernel/boot/vmlinuz-1", "true")
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "DUTYFREE": "dutyfree"}
    command = [tmp_path / "scripts" / "engines", "during", "cat", ".build/engines/env"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert "warning: Docker: our own engine did not start" in done.stderr
    assert "export DOCKER_HOST='unix:///nonexistent'\n" in done.stdout
    assert (tmp_path / "asked").read_text().split() == ["start", "stop"]
