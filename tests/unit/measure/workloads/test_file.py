"""Workloads as TOML files: what is in them arrives, and what is wrong in them is named with its place."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest
from dutyfree.measure.workloads import catalogue
from dutyfree.measure.workloads.file import MAX_ACTIONS, load_workload
from dutyfree.measure.workloads.workload import ActionKind, Expectation, ScriptedAction, Workload
from dutyfree.model import Action, FileInput, Stage
from support.repository import ROOT

DIGEST = "0123456789abcdef" * 4
WHOLE = f"""
name = "mine"
title = "what it is"

[[stage]]
name = "image"
files = [{{ source = "tools", target = "~/tools" }}, {{ source = "/etc/hosts", target = "/hosts" }}]
env = {{ A = "1", B = "2" }}

[[stage]]
name = "repository"
files = {{ source = "material:attrs.bundle", target = "~/attrs.bundle" }}
cwd = "~"
run = "git clone ~/attrs.bundle attrs"
env = {{ B = "3" }}

[mix]
edit = 0.25
inspect = 0.75

[[opening]]
name = "first"
kind = "command"
run = ["git", "status"]
cwd = "/src"
env = {{ A = "0" }}
stdin = "input"
timeout_s = 5
output_limit_bytes = 1000
think_s = 1.5
expect = {{ exit_code = 3, contains = ["a", "b"], sha256 = "{DIGEST}" }}

[[menu]]
name = "look"
kind = "inspect"
run = "ls"
weight = 2
expect = {{ exit_code = 0 }}

[[menu]]
name = "change"
kind = "edit"
run = "touch a"
expect = {{ exit_code = "any" }}
"""
OPENING = '[[opening]]\nname = "a"\nkind = "edit"\nrun = "ls"\n'
MENU = OPENING.replace("opening", "menu")
EXPECT = "expect = { exit_code = 0 }\n"


def write(directory: Path, text: str) -> Path:
    path = directory / "mine.toml"
    path.write_text(text)
    return path


def test_everything_that_a_file_can_say(tmp_path: Path) -> None:
    first = Action(
        ("git", "status"),
        cwd="/src",
        env={"A": "0", "B": "3"},
        stdin=b"input",
        timeout_s=5.0,
        output_limit_bytes=1000,
    )
    env = {"A": "1", "B": "3"}
    assert load_workload(write(tmp_path, WHOLE)) == Workload(
        name="mine",
        title="what it is",
        stages=(
            Stage(
                "image",
                files=(FileInput(str(tmp_path / "tools"), "/~/tools"), FileInput("/etc/hosts", "/hosts")),
                env={"A": "1", "B": "2"},
            ),
            Stage(
                "repository",
                files=(FileInput("material:attrs.bundle", "/~/attrs.bundle"),),
                cwd="/~",
                run=("git clone ~/attrs.bundle attrs",),
                env={"B": "3"},
            ),
        ),
        opening=(ScriptedAction("first", ActionKind.COMMAND, first, Expectation(3, ("a", "b"), DIGEST), think_s=1.5),),
        menu=(
            ScriptedAction("look", ActionKind.INSPECT, Action("ls", env=env), Expectation(0), weight=2.0),
            ScriptedAction("change", ActionKind.EDIT, Action("touch a", env=env), Expectation(None)),
        ),
        mix={ActionKind.EDIT: 0.25, ActionKind.INSPECT: 0.75},
    )


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        ('names = "a"', "mine.toml", "no key 'names'"),
        ('name = "../a"', "mine.toml, name", "no name"),
        ("name = 3", "mine.toml, name", "a string is wanted"),
        (f'name = "a"\n{OPENING}', "opening 1 ('a')", "'expect' is missing"),
        (f'name = "a"\n{OPENING}expect = {{}}', "opening 1 ('a'), expect", "'exit_code' is missing"),
        (f'name = "a"\n{OPENING}expect = {{ exit_code = 256 }}', "expect, exit_code", "0 to 255"),
        (f'name = "a"\n{OPENING}expect = {{ exit_code = true }}', "expect, exit_code", "0 to 255"),
        (f'name = "a"\n{OPENING}expect = {{ exit_code = 0, contains = "a" }}', "expect, contains", "a list of strings"),
        (f'name = "a"\n{OPENING}expect = {{ exit_code = 0, contains = [""] }}', "expect, contains", "every output"),
        (f'name = "a"\n{OPENING}expect = {{ exit_code = 0, sha256 = "AB" }}', "expect, sha256", "64 of the digits"),
        (f'name = "a"\n{OPENING}expect = {{ exit_code = 0, stdout = "" }}', "expect", "no key 'stdout'"),
        (f'name = "a"\n{OPENING}{EXPECT}weight = 2', "opening 1", "no key 'weight'"),
        (f'name = "a"\n{MENU}{EXPECT}think_s = 2', "menu 1", "no key 'think_s'"),
        (f'name = "a"\n{OPENING}{EXPECT}cwd = "~/a"', "cwd", "only a shell expands"),
        (f'name = "a"\n{OPENING}{EXPECT}timeout_s = 0', "timeout_s", "positive"),
        (f'name = "a"\n{OPENING}{EXPECT}timeout_s = 1e9', "opening 1 ('a')", "timeout_s is"),
        (f'name = "a"\n{OPENING}{EXPECT}output_limit_bytes = 1.5', "output_limit_bytes", "a whole number"),
        (f'name = "a"\n{OPENING}{EXPECT}'.replace('"edit"', '"edits"'), "kind", "no kind of action"),
        (f'name = "a"\n{OPENING}{EXPECT}'.replace('"ls"', "[]"), "opening 1 ('a')", "the command is empty"),
        (f'name = "a"\n{OPENING}{EXPECT}{OPENING}{EXPECT}', "opening", "two actions are called 'a'"),
        (f'name = "a"\n{MENU}{EXPECT}', "mine.toml", "its mix must name the kinds of its menu"),
        (f'name = "a"\n[mix]\nedit = 1\ntest = 1\n{MENU}{EXPECT}', "mine.toml", "its mix must name the kinds"),
        (f'name = "a"\n[mix]\nedit = 0\n{MENU}{EXPECT}', "mix, edit", "a positive number"),
        (f'name = "a"\n[mix]\nedit = inf\n{MENU}{EXPECT}', "mix, edit", "a positive number"),
        (f'name = "a"\n[mix]\nedit = {10**400}\n{MENU}{EXPECT}', "mix, edit", "a positive number"),
        (f'name = "a"\n[mix]\nedit = 1e7\n{MENU}{EXPECT}', "mix, edit", "a number up to 1e+06"),
        (f'name = "a"\n[mix]\nedits = 1\n{MENU}{EXPECT}', "mix", "no key 'edits'"),
        ('name = "a"', "mine.toml", "has no action"),
        ('name = "a"\n[[stage]]\nname = "x"\nfiles = "a"', "stage 1 ('x'), files", "a table is wanted"),
        ('name = "a"\n[[stage]]\nname = "x"\ncwd = "a"', "stage 1 ('x')", "not an absolute path"),
        ('name = "a"\n[[stage]]\nname = "x"\ncwd = "~a"', "stage 1 ('x')", "not an absolute path"),
        ('name = "a"\n[[stage]]\nname = "x"\nruns = "a"', "stage 1 ('x')", "no key 'runs'"),
        ('name = "a"\n[[stage]]\nname="dependencies"\n[[stage]]\nname="image"', "stage", "out of order"),
        ('name = "a"\nstage = "x"', "stage", "a list of tables"),
        ("name = ", "mine.toml", "not TOML"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, where: str, what: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidRequest) as caught:
        load_workload(path)
    assert str(path) in caught.value.message
    assert where in caught.value.message
    assert what in caught.value.message


def test_the_documentation_shows_what_is_read(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "reference" / "workloads.md").read_text()
    workload = load_workload(write(tmp_path, re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0]))
    assert [each.name for each in (*workload.opening, *workload.menu)] == ["list", "read", "write"]


def test_too_many_actions(tmp_path: Path) -> None:
    many = "".join(f'[[opening]]\nname = "a{n}"\nkind = "edit"\nrun = "ls"\n{EXPECT}' for n in range(MAX_ACTIONS + 1))
    with pytest.raises(InvalidRequest, match=f"at most {MAX_ACTIONS} are taken"):
        load_workload(write(tmp_path, 'name = "a"\n' + many))


def test_the_catalogue_finds_names_files_and_recordings(tmp_path: Path) -> None:
    assert [catalogue.find(name).name for name in catalogue.BUILT_IN] == ["T0", "T1", "T2"]
    assert catalogue.find(str(write(tmp_path, WHOLE))).name == "mine"
    recording = tmp_path / "run.jsonl"
    recording.write_text('{"run": "ls"}\n')
    assert catalogue.find(str(recording)).opening[0].action == Action("ls")
    for missing in ("T3", str(tmp_path), str(tmp_path / "no.toml"), str(tmp_path / "no.traj")):
        with pytest.raises(InvalidRequest, match=r"no workload|cannot read"):
            catalogue.find(missing)
