"""`dutyfree image`, and `run` from images, as a shell sees them."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import signal
import socket
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dutyfree import formatting
from dutyfree.cli import progress_bar
from dutyfree.cli.progress_bar import ASCII, State, line
from support.shell import Shell

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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory that can be an image."""
    root = tmp_path / "root"
    for name in ("etc", "bin", "srv"):
        (root / name).mkdir(parents=True)
    (root / "etc" / "motd").write_text("welcome\n")
    shutil.copy("/bin/true", root / "bin")
    return root


def wait_until(happened: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["build", "nowhere.toml"], "nowhere.toml"),
        (["build", "odd.toml"], "there is no key 'odd'"),
        (["build", "tiny.toml", "--name", "NO"], "cannot name an image"),
        (["import", "nowhere"], "cannot import 'nowhere': No such file"),
        (["import", "x" * 300], "File name too long"),
        (["import", "/dev/null"], "cannot import '/dev/null'"),
        (["import", "debian:bookworm"], "hint: it is a recipe's base"),
        (["import", "tar:nowhere.tar"], "nowhere.tar"),
        (["import", "odd.toml"], "cannot import 'odd.toml'"),
        (["show", "nowhere"], "no image 'nowhere'"),
        (["export", "nowhere", "x.tar"], "no image 'nowhere'"),
        (["remove", "nowhere"], "no image 'nowhere'"),
        (["prune", "--older-than", "soon"], "not a duration; write seconds, or with a unit"),
        (["prune", "--keep", "much"], "not a size; write bytes, or with a unit"),
    ],
)
def test_wrong_usage_is_2_and_says_why(dutyfree: Shell, words: list[str], said: str) -> None:
    dutyfree.write("odd.toml", "odd = 1\n")
    dutyfree.write("tiny.toml", TINY)
    done = dutyfree("image", *words, code=2)
    assert said in done.stderr
    assert "error: " in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("kind", ["", "tar:", "oci-archive:", "docker-archive:", "dir:", "oci:"])
def test_a_pipe_is_refused_and_not_waited_for(dutyfree: Shell, tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = dutyfree("image", "import", f"{kind}pipe", code=2)
    assert ("'pipe' is not a " if kind != "oci:" else "is not an OCI layout") in done.stderr


def test_errors_do_nothing_to_a_terminal(dutyfree: Shell) -> None:
    dutyfree.write("\x1b]0;owned\x07.toml", "odd = 1\n")
    dutyfree.write("bad.toml", '[[stage]]\nname = "\\u001b[2Jgone"\nrun = 3\n')
    for name in ("\x1b]0;owned\x07.toml", "bad.toml"):
        said = dutyfree("image", "build", name, code=2).stderr
        assert ".toml" in said
        assert said.replace("\n", "").isprintable()
    assert formatting.plain("a\x1b[31mb\tc\nd\x9b\u202e") == "ab\tc\nd"


# Importing, looking, exporting, removing


def test_what_a_path_holds_is_found_out(dutyfree: Shell, root: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "Plain.tar.gz", "w:gz") as tar:
        tar.add(root, ".")
    assert dutyfree("image", "import", "root").stdout.startswith("root sha256:")
    assert dutyfree("image", "import", "Plain.tar.gz").stdout.startswith("plain sha256:")
    told = dutyfree.json("image", "import", "dir:root", "--name", "team/root:1")
    assert (told["name"], len(told["layers"])) == ("team/root:1", 1)
    exported = dutyfree.json("image", "export", "root", "out.tar")
    assert (exported["path"], exported["name"]) == ("out.tar", "root:latest")
    dutyfree("image", "export", "root", "layout")
    (tmp_path / "a:b.tar.gz").write_bytes(gzip.compress((tmp_path / "out.tar").read_bytes()))
    for source in ("layout", "oci:layout:root:latest", "oci:layout"):
        back = dutyfree.json("image", "import", source, "--name", "back")
        assert back["layers"] == told["layers"] == exported["layers"]
    if shutil.which("skopeo") is None:
        pytest.skip("dutyfree image import of an archive: skopeo is not installed")
    for source in ("out.tar", "a:b.tar.gz", "docker-archive:out.tar:root:latest"):
        back = dutyfree.json("image", "import", source, "--name", "back")
        assert back["layers"] == told["layers"], source


def test_a_source_without_a_name_needs_one(dutyfree: Shell, root: Path) -> None:
    root.rename(root.with_name("ä"))
    assert "hint: choose one with --name" in dutyfree("image", "import", "ä", code=2).stderr
    assert dutyfree("image", "import", "ä", "--name", "a").stdout.startswith("a sha256:")


def test_list_and_show_add_up(dutyfree: Shell, root: Path) -> None:
    assert dutyfree("image", "list").stdout.startswith("0 layers and 0 cached stages take 0 B: images 0 B, ")
    dutyfree("image", "import", "root", "--name", "a")
    (root / "more").write_bytes(bytes(range(256)) * 4096)
    dutyfree("image", "import", "root", "--name", "b")
    dutyfree("image", "import", "root", "--name", "c")
    listed = dutyfree.json("image", "list")
    usage = listed["usage"]
    parts = [usage[f"{part}_bytes"] for part in ("named", "cached", "held", "unreachable")]
    assert sum(parts) == usage["total_bytes"] > 2**20
    assert sum(each["own_bytes"] for each in listed["images"]) + usage["shared_bytes"] == usage["named_bytes"]
    text = dutyfree("image", "list").stdout.splitlines()
    assert text[0].split() == ["NAME", "DIGEST", "LAYERS", "SIZE", "OWN", "BASE", "CREATED"]
    assert re.fullmatch(r"a +[0-9a-f]{12} +1 +[\d.]+ KiB +[\d.]+ KiB +- +(now|\d+ s ago)", text[1])
    assert re.search(r" +0 B +- ", text[2])
    assert text[-1].startswith("2 layers and 0 cached stages take ")
    shown = dutyfree.json("image", "show", "b")
    assert (shown["cwd"], shown["over_host"], shown["source"]) == ("/", False, "root")
    assert [layer["origin"] for layer in shown["layers"]] == ["directory"]
    assert shown["digest"] in dutyfree("image", "show", "b").stdout
    assert dutyfree.json("image", "show", shown["digest"])["layers"] == shown["layers"]


def test_names_are_removed_and_layers_pruned(dutyfree: Shell, root: Path) -> None:
    dutyfree("image", "import", "root", "--name", "a")
    (root / "more").write_text("more")
    dutyfree("image", "import", "root", "--name", "b")
    assert "no image 'c'" in dutyfree("image", "remove", "a", "c", code=2).stderr
    assert dutyfree.names() == ["a", "b"]
    removed = dutyfree("image", "remove", "a").stdout
    assert re.fullmatch(r"removed a\n`dutyfree image prune` would free [\d.]+ KiB\n", removed)
    assert dutyfree.names() == ["b"]
    would = dutyfree.json("image", "prune", "--dry-run")
    assert dutyfree("image", "prune", "--dry-run").stdout.startswith("would remove 0 cached stages and 1 layer: ")
    pruned = dutyfree.json("image", "prune", "--older-than", "7d", "--keep", "10GB")
    assert pruned == {**would, "dry_run": False}
    assert pruned["freed_bytes"] > 0
    assert dutyfree("image", "prune").stdout.startswith("removed 0 cached stages and 0 layers: 0 B freed, ")
    assert dutyfree.names() == ["b"]
    assert dutyfree("image", "check", "--deep").stdout == "no problems found\n"


def test_an_export_replaces_only_when_told_to_and_only_images(dutyfree: Shell, root: Path, tmp_path: Path) -> None:
    dutyfree("image", "import", "root")
    done = dutyfree("image", "export", "root", "out.tar")
    assert re.fullmatch(r"out\.tar root:latest sha256:[0-9a-f]{64}\n", done.stdout)
    assert "already exists" in dutyfree("image", "export", "root", "out.tar", code=2).stderr
    assert dutyfree("image", "export", "root", "out.tar", "--overwrite", "--quiet").stdout == done.stdout
    dutyfree("image", "export", "root", "root", "--overwrite", code=2)
    assert (tmp_path / "root" / "etc" / "motd").exists()


def test_damage_is_1_and_a_store_can_be_anywhere(dutyfree: Shell, root: Path, tmp_path: Path) -> None:
    assert "no image store at 'elsewhere'" in dutyfree("image", "list", "--store", "elsewhere", code=2).stderr
    assert not (dutyfree.directory / "elsewhere").exists(), "only a command that puts an image there makes a store"
    done = dutyfree("image", "import", "root", "--store", "elsewhere")
    assert "making a new image store at elsewhere\n" in done.stderr
    assert dutyfree.names() == []
    assert dutyfree("image", "check", "--store", "elsewhere").stdout == "no problems found\n"
    (tmp_path / "elsewhere" / "names" / "root.json").write_text("{")
    (tmp_path / "elsewhere" / "stray").touch()
    assert len(dutyfree.json("image", "check", "--store", "elsewhere", code=1)["problems"]) == 2
    assert "stray" in dutyfree("image", "check", "--store", "elsewhere", code=1).stdout
    # The hint for a damaged name is to remove it.
    assert "remove root" in dutyfree("image", "show", "root", "--store", "elsewhere", code=2).stderr
    dutyfree("image", "remove", "root", "--store", "elsewhere")


def test_a_reader_that_goes_away(dutyfree: Shell, root: Path) -> None:
    dutyfree("image", "import", "root")
    with dutyfree.started("image", "list", "--json") as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.wait(20) == 128 + signal.SIGPIPE
        assert child.stderr.read() == b""


# Interrupting


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="interrupting an import: skopeo is not installed")
def test_ctrl_c_while_a_registry_is_silent(dutyfree: Shell, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as registry:
        source = f"docker://127.0.0.1:{registry.getsockname()[1]}/app:1"
        with dutyfree.started("image", "import", source) as child:
            registry.settimeout(30)
            connection, _ = registry.accept()
            with connection:
                os.killpg(child.pid, signal.SIGINT)
                assert child.wait(20) == 130
    assert list((tmp_path / "state" / "dutyfree" / "images" / "staging").iterdir()) == []
    assert dutyfree.names() == []


def test_term_during_an_export_leaves_nothing(dutyfree: Shell, root: Path, tmp_path: Path) -> None:
    (root / "noise").write_bytes(os.urandom(64 * 1024 * 1024))
    dutyfree("image", "import", "root")
    (tmp_path / "out").mkdir()
    with dutyfree.started("image", "export", "root", "out/image.tar") as child:
        wait_until(lambda: list((tmp_path / "out").iterdir()))
        os.killpg(child.pid, signal.SIGTERM)
        assert child.wait(20) == 128 + signal.SIGTERM
    assert list((tmp_path / "out").iterdir()) == []


# What a terminal shows


def test_the_line_says_what_is_done() -> None:
    state = State("[1/3] repository", "git fetch\tof\x1b[31m much", elapsed_s=3.25)
    assert line(state, 79, ASCII) == "| [1/3] repository  git fetch of much  3.2 s"
    state.count(5 * 2**20, None)
    assert line(state, 79, ASCII) == "| [1/3] repository  git fetch of much  5.0 MiB  3.2 s"
    state.count(5 * 2**20, 20 * 2**20)
    assert line(state, 79, ASCII) == "| [1/3] repository  ######..................  25% of 20.0 MiB  3.2 s"
    state.count(30 * 2**20, 20 * 2**20)
    assert "########################  100% of" in line(state, 79, ASCII)
    state.frame = 1
    assert line(state, 30, ASCII) == "/ [1/3] repository  3.2 s"


@pytest.mark.parametrize("width", [0, 1, 5, 10, 20, 28, 40, 60, 79, 200])
@pytest.mark.parametrize("counts", [(None, None), (0, None), (0, 0), (7, 2**40), (2**40, 2**40)])
def test_the_line_never_wraps(width: int, counts: tuple[int | None, int | None]) -> None:
    for text in ("", "x" * 300, "漢字" * 60, "e\u0301" * 100):
        state = State(text[:20], text, *counts, elapsed_s=1e6, frame=7)
        assert formatting.display_width(line(state, width)) <= width


def test_a_dumb_terminal_gets_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert not progress_bar.Display().is_live
    monkeypatch.setenv("TERM", "xterm")
    assert progress_bar.Display().is_live
    assert not progress_bar.Display(quiet=True).is_live


def test_sizes_times_and_tables() -> None:
    sizes = [formatting.size(each) for each in (0, 1023, 1024, 1023 * 1024, 1.5 * 2**30, 5000 * 2**40)]
    assert sizes == ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.5 GiB", "5000.0 TiB"]
    ages = [formatting.age(each) for each in (-5, 1, 2, 119, 120, 7200, 86400 * 2, 86400 * 400)]
    assert ages == ["now", "now", "2 s ago", "119 s ago", "2 min ago", "2 h ago", "2 d ago", "400 d ago"]
    assert [formatting.duration(each) for each in (0.04, 59.94, 60, 125, 7260)] == [
        "0.0 s",
        "59.9 s",
        "1 min 0 s",
        "2 min 5 s",
        "2 h 1 min",
    ]
    assert formatting.table([("A", "N"), ("漢", "10")], numbers=frozenset({1})) == ["A    N", "漢  10"]
    assert formatting.last_lines("a\n10%\r100%\r\n\x1b[1mb\x07\n", 2) == ["100%", "b"]
    assert formatting.last_lines("\n", 2) == []
