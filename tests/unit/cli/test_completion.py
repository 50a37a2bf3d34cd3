"""`dutyfree completion`, in the shells themselves where they are installed."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from dutyfree.cli import completion_scripts
from dutyfree.cli.completion_tree import Kind, commands_of
from dutyfree.cli.main import COMMANDS, build_parser, main

ALL = commands_of(build_parser())


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "dutyfree.bash"
    path.write_text(completion_scripts.bash(ALL))
    return path


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last word."""
    program = f"""
        compopt() {{ :; }}  # works only while the user presses Tab
        source {shlex.quote(str(script))}
        COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}
        _dutyfree; printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True, cwd=script.parent)
    assert done.stderr == ""
    return done.stdout.split()


def test_the_tree_has_every_command() -> None:
    places = {each.path for each in ALL}
    assert places >= {(), *((name,) for name in COMMANDS), ("image", "build"), ("pool", "status")}
    run = next(each for each in ALL if each.path == ("run",))
    assert run.runs
    kinds = {each.names[-1]: each.values.kind for each in run.options if each.values is not None}
    assert kinds["--store"] is Kind.DIRECTORIES
    assert kinds["--recipe"] is Kind.FILES
    assert kinds["--network"] is Kind.WORDS
    assert kinds["--memory"] is Kind.FREE


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("dutyfree", "ru"), ["run"]),
        (("dutyfree", "image", "bu"), ["build"]),
        (("dutyfree", "run", "--mem"), ["--memory"]),
        (("dutyfree", "run", "--network", "b"), ["bridge"]),
        (("dutyfree", "run", "--substrate", "gv"), ["gvisor"]),
        (("dutyfree", "run", "--json", "--substrate", "au"), ["auto"]),
        (("dutyfree", "doctor", "micro"), ["microvm"]),
        (("dutyfree", "completion", "z"), ["zsh"]),
        (("dutyfree", "run", "--", "printenv"), ["printenv"]),
        (("dutyfree", "run", "--recipe", "dutyfree.b"), ["dutyfree.bash"]),
        (("dutyfree", "run", "--", "cat", "dutyfree.b"), ["dutyfree.bash"]),
        (("dutyfree", "run", "--memory", ""), []),
    ],
)
def test_bash_offers(words: tuple[str, ...], offered: list[str], bash_script: Path) -> None:
    assert sorted(set(completed(bash_script, *words))) == offered  # a program can be in two directories of PATH


def test_bash_offers_all_commands(bash_script: Path) -> None:
    assert set(completed(bash_script, "dutyfree", "")) >= set(COMMANDS)


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = tmp_path / "script"
    script.write_text(capsys.readouterr().out)
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("dutyfree", "run", "--network", ""), {"none", "bridge", "host"}),
        (("dutyfree", "run", "--store", ""), {"_files"}),
        (("dutyfree", "image", ""), {"build", "import", "--help"}),
        (("dutyfree", "run", "--", ""), {"_command_names"}),
    ],
)
def test_zsh_offers(words: tuple[str, ...], offered: set[str], tmp_path: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    script = tmp_path / "_dutyfree"
    script.write_text(completion_scripts.zsh(ALL))
    # In place of the functions that work only while the user presses Tab.
    program = f"""
        compdef() {{ : }}; compadd() {{ shift; print -l -- "$@" }}; _describe() {{ print -l -- "${{(P@)argv[-1]}}" }}
        _files() {{ print _files }}; _command_names() {{ print _command_names }}
        source {shlex.quote(str(script))}
        words=({shlex.join(words)}); CURRENT={len(words)}; _dutyfree
    """
    done = subprocess.run(["zsh", "-f", "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert {each.partition(":")[0] for each in done.stdout.splitlines()} >= offered


def test_fish_offers(tmp_path: Path) -> None:
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    script = tmp_path / "dutyfree.fish"
    script.write_text(completion_scripts.fish(ALL))
    line = f"source {script}; complete -C 'dutyfree run --network b'; complete -C 'dutyfree image bu'"
    done = subprocess.run(["fish", "--no-config", "-c", line], capture_output=True, text=True, check=True)
    assert [each.split("\t")[0] for each in done.stdout.splitlines()] == ["bridge", "build"]
