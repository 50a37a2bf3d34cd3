"""`dutyfree image build` and `run` from images, in cells; and images of an ordinary user."""

from __future__ import annotations

import contextlib
import os
import pty
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dutyfree import formatting
from support.shell import DUTYFREE, Shell

TINY = """
name = "tiny"

[[stage]]
name = "image"
run = ["echo first; echo one > /srv/one"]

[[stage]]
name = "more"
run = ["cat /srv/one > /srv/two"]
env = { A = "1" }
cwd = "/srv"
"""


@pytest.fixture
def dutyfree(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture(scope="module")
def missing_cells() -> str:
    """Why there are no cells here, and so no builds; nothing where there are."""
    done = subprocess.run([*DUTYFREE, "run", "--", "true"], capture_output=True, text=True, timeout=60)
    return done.stderr if done.returncode == 3 and "hint: " in done.stderr else ""


@pytest.fixture
def cells(dutyfree: Shell, missing_cells: str) -> Shell:
    """For tests that build."""
    if missing_cells:
        pytest.skip(f"dutyfree image build: {missing_cells}")
    return dutyfree


def test_a_recipe_is_built_once(cells: Shell) -> None:
    cells.write("tiny.toml", TINY)
    first = cells("image", "build", "tiny.toml")
    name, digest = first.stdout.split()
    assert (name, digest[:7], len(digest)) == ("tiny", "sha256:", 71)
    assert "[2/2] more: built in " in first.stderr
    assert "\n  first\n" not in first.stderr
    told = cells.json("image", "build", "tiny.toml", "--name", "again")
    assert (told["name"], told["digest"]) == ("again", digest)
    assert [(stage["name"], stage["cached"]) for stage in told["stages"]] == [
        ("base", True),
        ("image", True),
        ("more", True),
    ]
    assert {"digest", "seconds"} <= set(told["stages"][0])
    assert cells.names() == ["again", "tiny"]
    rebuilt = cells("image", "build", "tiny.toml", "--rebuild", "--verbose").stderr
    assert "[1/2] image: built in " in rebuilt
    assert "\n  first\n" in rebuilt
    assert cells("image", "build", "tiny.toml", "--quiet").stderr == ""


def test_a_line_that_fails_is_1_and_shows_its_log(cells: Shell) -> None:
    script = "seq 1000; printf '\\\\033[31mred\\\\n'; echo oops >&2; exit 4"
    cells.write("bad.toml", f'[[stage]]\nname = "image"\nrun = ["{script}"]\n')
    done = cells("image", "build", "bad.toml", code=1)
    assert done.stdout == ""
    assert "\n  1000\n  red\n  oops\nerror: stage 'image': line 1 " in done.stderr
    assert "exit code 4" in done.stderr
    assert "\n  100\n" not in done.stderr
    told = cells.json("image", "build", "bad.toml", code=1)["error"]
    assert (told["kind"], told["party"]) == ("BuildFailed", "caller")
    assert cells("run", "--recipe", "bad.toml", "--", "true", code=1).stderr.count("  oops\n") == 1
    assert cells.names() == []
    assert cells.json("image", "list")["usage"]["layers"] == 0
    assert cells("image", "check", "--deep").stdout == "no problems found\n"


def test_sandboxes_start_from_images_and_recipes(cells: Shell) -> None:
    cells.write("tiny.toml", TINY)
    command = ["--quiet", "--", "sh", "-c", "cat one two; echo $A $PWD"]
    from_recipe = cells("run", "--recipe", "tiny.toml", *command)
    assert from_recipe.stdout == "one\none\n1 /srv\n"
    assert cells("run", "--recipe", "tiny.toml", "--", "true").stderr == ""
    digest = cells.json("image", "build", "tiny.toml")["digest"]
    assert cells("run", "--image", "tiny", *command).stdout == from_recipe.stdout
    assert cells("run", "--image", digest[7:19], *command).stdout == from_recipe.stdout
    unknown = cells("run", "--image", "tyni", "--", "true", code=2)
    command = "dutyfree image import docker://tyni --name tyni"
    assert unknown.stderr == f"error: there is no image 'tyni'\nhint: similar names: tiny; to fetch it: {command}\n"
    cells("run", "--image", "tiny", "--recipe", "tiny.toml", "--", "true", code=2)
    other = ["--substrate", "process", "--image", "tiny", "--", "true"]
    assert "no images" in cells("run", *other, code=2).stderr


def test_stages_go_only_when_they_are_told_to(cells: Shell) -> None:
    cells.write("tiny.toml", TINY)
    cells("image", "build", "tiny.toml")
    assert cells.json("image", "remove", "tiny")["cached_bytes"] > 0
    assert cells.json("image", "prune", "--older-than", "1h")["layers"] == []
    pruned = cells.json("image", "prune", "--keep", "0")
    assert (len(pruned["stages"]), len(pruned["layers"]), pruned["kept_bytes"]) == (2, 2, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become an ordinary user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is missing: install util-linux")
def test_an_ordinary_user_has_images_of_their_own() -> None:
    # Not tmp_path: pytest closes its directories to everybody else.
    with tempfile.TemporaryDirectory(prefix="stranger-", dir="/tmp") as name:
        home = Path(name)
        (home / "root" / "etc").mkdir(parents=True)
        shutil.copytree(Path(formatting.__file__).parent, home / "lib" / "dutyfree")
        os.chown(home, 4321, 4321)
        ordinary = Shell(home, ("setpriv", "--reuid=4321", "--regid=4321", "--clear-groups"))
        ordinary.command[-3] = str(Path(sys.executable).resolve())
        ordinary.environment |= {"PYTHONPATH": str(home / "lib"), "PYTHONDONTWRITEBYTECODE": "1", "HOME": name}
        ordinary("image", "import", "root")
        ordinary("image", "export", "root", "out.tar")
        assert ordinary.names() == ["root"]
        assert ordinary("image", "check", "--deep").stdout == "no problems found\n"
        assert (home / "state").stat().st_uid == 4321
        (home / "closed").mkdir(mode=0o700)
        for source in ("closed/x", "oci:closed/x", "oci-archive:closed/x:1"):
            ordinary("image", "import", source, "--name", "x", code=2)


def test_ctrl_c_during_a_stage_leaves_nothing(cells: Shell, tmp_path: Path) -> None:
    cells.write("slow.toml", '[[stage]]\nname = "image"\nrun = ["echo > /srv/x; sleep 4321"]\n')
    with cells.started("image", "build", "slow.toml") as child:
        assert child.stderr is not None
        lines = iter(child.stderr.readline, b"")
        assert any(b"sleep 4321" in each for each in lines)
        os.killpg(child.pid, signal.SIGINT)
        assert child.wait(20) == 130
        assert child.stderr.read() == b""
    # Not by opening the store, which would sweep.
    assert list((tmp_path / "state" / "dutyfree" / "images" / "staging").iterdir()) == []
    assert cells("image", "check", "--deep").stdout == "no problems found\n"
    assert cells.json("image", "list")["usage"]["layers"] == 0


def test_a_terminal_shows_a_line_that_goes_away(cells: Shell) -> None:
    cells.write("slow.toml", '[[stage]]\nname = "image"\nrun = ["sleep 0.5", "sleep 4321"]\n')
    controller, device = pty.openpty()
    start_s = time.monotonic()
    try:
        with cells.started("image", "build", "slow.toml", stderr=device) as child:
            os.close(device)
            shown = b""
            while b"sleep 4321" not in shown:
                shown += os.read(controller, 4096)
            os.killpg(child.pid, signal.SIGINT)
            assert child.wait(20) == 130
            with contextlib.suppress(OSError):  # what a terminal gives whose other end is closed
                while more := os.read(controller, 4096):
                    shown += more
    finally:
        os.close(controller)
    text = shown.decode()
    assert "[0/1] base: cached\r\n" in text
    assert text.count("[1/1] image  sleep 0.5  ") >= 2
    # Every drawing clears the line first; so do the two lines that are said, and the end.
    assert text.count("\r\x1b[K") <= 10 * (time.monotonic() - start_s) + 4
    assert text.endswith("\r\x1b[K")
    assert "[1/1] image: sleep" not in text
