"""Recipes as TOML files: what is in them arrives, and what is wrong in them is named with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest
from dutyfree.images.recipes import file as recipe_file
from dutyfree.model.limits import Network
from dutyfree.model.recipe import DEFAULT_STAGE_TIMEOUT_S, FileInput, GitInput, Recipe, Stage
from dutyfree.tables import MAX_FILE_BYTES

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WHOLE = f"""
name = "team/attrs:1"
base = "debian:bookworm+git"

[defaults]
network = "host"

[[stage]]
name = "repository"
git = {{ url = "https://example.org/attrs.git", commit = "{COMMIT}", target = "/src/attrs" }}

[[stage]]
name = "dependencies"
run = ["one", "two"]
files = [{{ source = "wheels", target = "/wheels" }}, {{ source = "/etc/hosts", target = "/hosts" }}]
env = {{ A = "1", B = "" }}
cwd = "/src/attrs"
network = "none"
timeout_s = 5

[[stage]]
name = "custom"
run = '''
three
four
'''
"""


def write(directory: Path, text: str) -> Path:
    path = directory / "recipe.toml"
    path.write_text(text)
    return path


def test_everything_that_a_file_can_say(tmp_path: Path) -> None:
    name, recipe = recipe_file.load(write(tmp_path, WHOLE))
    assert name == "team/attrs:1"
    assert recipe == Recipe(
        base="debian:bookworm+git",
        stages=(
            Stage(
                "repository",
                git=(GitInput("https://example.org/attrs.git", COMMIT, "/src/attrs"),),
                network=Network.HOST,
            ),
            Stage(
                "dependencies",
                run=("one", "two"),
                files=(FileInput(str(tmp_path / "wheels"), "/wheels"), FileInput("/etc/hosts", "/hosts")),
                env={"A": "1", "B": ""},
                cwd="/src/attrs",
                network=Network.NONE,
                timeout_s=5.0,
            ),
            Stage("custom", run=("three\nfour\n",), network=Network.HOST),
        ),
    )


def test_an_empty_file_is_the_host(tmp_path: Path) -> None:
    assert recipe_file.load(write(tmp_path, "")) == (None, Recipe())


def test_a_stage_needs_only_its_name(tmp_path: Path) -> None:
    _, recipe = recipe_file.load(write(tmp_path, '[[stage]]\nname = "a"'))
    assert recipe.stages == (Stage("a"),)
    assert recipe.stages[0].network is Network.NONE
    assert recipe.stages[0].timeout_s == DEFAULT_STAGE_TIMEOUT_S


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("dir:root", "dir:{here}/root"),
        ("dir:/srv/root", "dir:/srv/root"),
        ("tar:../root.tar.gz", "tar:{here}/../root.tar.gz"),
        ("oci:layout", "oci:{here}/layout"),
        ("oci:layout:name", "oci:{here}/layout:name"),
        ("oci:docker://localhost:5000/a:1", "oci:docker://localhost:5000/a:1"),
        ("oci:docker-daemon:a:1", "oci:docker-daemon:a:1"),
        ("debian:bookworm", "debian:bookworm"),
        ("host", "host"),
    ],
)
def test_paths_of_bases_are_relative_to_the_file(tmp_path: Path, written: str, meant: str) -> None:
    _, recipe = recipe_file.load(write(tmp_path, f'base = "{written}"'))
    assert recipe.base == meant.format(here=tmp_path)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("attrs.git", "{here}/attrs.git"),
        ("./a:b", "{here}/./a:b"),
        ("/srv/attrs", "/srv/attrs"),
        ("git@example.org:attrs.git", "git@example.org:attrs.git"),
        ("ssh://example.org/attrs", "ssh://example.org/attrs"),
        ("file:///srv/attrs", "file:///srv/attrs"),
    ],
)
def test_paths_of_repositories_are_relative_to_the_file(tmp_path: Path, written: str, meant: str) -> None:
    text = f'[[stage]]\nname = "a"\ngit = [{{ url = "{written}", commit = "{COMMIT}", target = "/a" }}]'
    _, recipe = recipe_file.load(write(tmp_path, text))
    assert str(Path(recipe.stages[0].git[0].url)) == str(Path(meant.format(here=tmp_path)))


def test_a_path_to_the_file_may_itself_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 'base = "dir:root"')
    monkeypatch.chdir(tmp_path)
    assert recipe_file.load("recipe.toml")[1].base == f"dir:{tmp_path}/root"


STAGE = '[[stage]]\nname = "a"\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("nom = 1", ["'nom'", "name, base, defaults, stage"]),
        ("name = 1", ["name", "string"]),
        ('name = "Writes"', ["name", "'Writes'"]),
        ('base = "hots"', ["'hots'", "debian:"]),
        ("base = []", ["base", "string"]),
        ("stage = 3", ["stage", "list of tables"]),
        ("stage = [3]", ["stage", "a table"]),
        ("defaults = 3", ["defaults", "a table"]),
        ("[defaults]\nrun = 'a'", ["defaults", "'run'", "network"]),
        ("[defaults]\nnetwork = 'some'", ["defaults", "network", "none or host"]),
        ("[[stage]]\nrun = 'a'", ["stage 1", "'name' is missing"]),
        ("[[stage]]\nname = 'A'", ["stage 1", "'A'"]),
        (STAGE + "runs = 'a'", ["stage 1 ('a')", "'runs'", "timeout_s"]),
        (STAGE + "run = 3", ["stage 1 ('a'), run", "string"]),
        (STAGE + "run = ['a', 3]", ["stage 1 ('a'), run", "string"]),
        (STAGE + "run = ['a', '']", ["stage 1 ('a')", "empty line"]),
        (STAGE + "env = { A = 1 }", ["stage 1 ('a'), env", "string"]),
        (STAGE + "env = { 'A=B' = '1' }", ["stage 1 ('a')", "A=B"]),
        (STAGE + "cwd = 'relative'", ["stage 1 ('a')", "'relative'"]),
        (STAGE + "network = true", ["stage 1 ('a'), network", "none or host"]),
        (STAGE + "timeout_s = 0", ["stage 1 ('a'), timeout_s", "positive"]),
        (STAGE + "timeout_s = nan", ["stage 1 ('a'), timeout_s", "positive"]),
        (STAGE + "timeout_s = true", ["stage 1 ('a'), timeout_s", "number"]),
        (STAGE + "timeout_s = '5'", ["stage 1 ('a'), timeout_s", "number"]),
        (STAGE + "files = [{ source = 'a' }]", ["stage 1 ('a'), files", "'target' is missing"]),
        (STAGE + "files = [{ source = 'a', target = 'b' }]", ["stage 1 ('a'), files", "'b'"]),
        (STAGE + "files = [{ source = '', target = '/b' }]", ["stage 1 ('a'), files", "''"]),
        (STAGE + "files = [{ source = 'a', target = '/b', mode = 1 }]", ["stage 1 ('a'), files", "'mode'", "source"]),
        (STAGE + "files = ['a']", ["stage 1 ('a'), files", "a table"]),
        (STAGE + "git = { url = 'a', commit = 'main', target = '/a' }", ["stage 1 ('a'), git", "'main'", "rev-parse"]),
        (STAGE + "git = { url = '', commit = '" + COMMIT + "', target = '/a' }", ["stage 1 ('a'), git", "''"]),
        (STAGE + STAGE, ["two stages", "'a'"]),
        ("[[stage]]\nname = 'dependencies'\n[[stage]]\nname = 'image'", ["out of order"]),
        ("= 1", ["not TOML", "line 1"]),
        ("a = " + "[" * 5000, ["not TOML"]),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, text: str, told: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidRequest) as caught:
        recipe_file.load(path)
    for words in (str(path), *told):
        assert words in str(caught.value)
    assert str(caught.value).count(str(path)) == 1


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"gone\.toml.*No such file"):
        recipe_file.load(tmp_path / "gone.toml")


def test_a_file_that_is_too_big_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="at most"):
        recipe_file.load(write(tmp_path, "#" * (MAX_FILE_BYTES + 1)))
    (tmp_path / "recipe.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match="not TOML"):
        recipe_file.load(tmp_path / "recipe.toml")


def test_a_name_in_a_message_is_short_and_plain(tmp_path: Path) -> None:
    for name in ("\\u001b]0;owned\\u0007", "x" * 5000):
        with pytest.raises(InvalidRequest) as caught:
            recipe_file.load(write(tmp_path, f'[[stage]]\nname = "{name}"\nrun = 3\n'))
        assert str(caught.value).isprintable()
        assert len(str(caught.value)) < len(str(tmp_path)) + 300
