"""What the examples and the documentation show, run as it stands there, in cells."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dutyfree
from support.repository import ROOT


@pytest.fixture(scope="module", autouse=True)
def _cells() -> None:
    try:
        with dutyfree.sync.local("cell"):
            pass
    except dutyfree.SubstrateUnavailable as error:
        pytest.skip(f"examples in cells: {error}")


SHIM = """#!/bin/sh
exec {python} -c 'from dutyfree.cli.main import main; raise SystemExit(main())' "$@"
"""


@pytest.fixture(scope="module")
def tutorial(_cells: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which whoever follows the tutorial has built its image: what it says to type, typed."""
    home = tmp_path_factory.mktemp("tutorial")
    program = home / "bin" / "dutyfree"
    program.parent.mkdir()
    program.write_text(SHIM.format(python=sys.executable))
    program.chmod(0o755)
    text = (ROOT / "docs/tutorial/first-rollout.md").read_text(encoding="utf-8")
    [typed] = [block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "image build" in block]
    environment = {**os.environ, "DUTYFREE_STATE_DIR": str(home), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-e", "-c", typed], cwd=home, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return environment


def whole_programs() -> list[tuple[str, str]]:
    """The example files, and every Python block of the documentation that is a program by itself."""
    programs = [(path.name, path.read_text(encoding="utf-8")) for path in sorted((ROOT / "examples").glob("*.py"))]
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        programs += [(f"{page.name}-{number}", text) for number, text in enumerate(blocks) if "asyncio.run(" in text]
    return programs


PROGRAMS = whole_programs()


@pytest.mark.parametrize(("name", "text"), PROGRAMS, ids=[name for name, _ in PROGRAMS])
def test_the_program_runs(name: str, text: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if "user=" in text and os.geteuid() != 0:
        pytest.skip("cells of an ordinary user have one user only")
    program = tmp_path / "program.py"
    program.write_text(text, encoding="utf-8")
    environment = request.getfixturevalue("tutorial") if '"middle"' in text else None
    # Cells of an ordinary user lack limits, and say so.
    command = [sys.executable, "-W", "ignore:not enforced here", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert done.stderr == ""


def test_the_documentation_has_programs() -> None:
    assert {"README.md-0", "first-rollout.md-0", "without_await.py"} <= {name for name, _ in PROGRAMS}
