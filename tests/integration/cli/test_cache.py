"""`dutyfree run --cache`, `--save-caches` and `dutyfree cache`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from support.shell import DUTYFREE


@pytest.fixture
def store(tmp_path: Path) -> Path:
    place = tmp_path / "store"
    place.mkdir(mode=0o700)
    return place


def dutyfree(*words: str | Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*DUTYFREE, *map(str, words)], capture_output=True, text=True, timeout=60)
    if done.returncode == 3:
        pytest.skip(done.stderr)
    return done


def run(store: Path, script: str, *options: str) -> subprocess.CompletedProcess[str]:
    return dutyfree("run", "-q", "--store", store, "--cache", "c:/var/cache/c", *options, "--", "sh", "-c", script)


def test_a_command_fills_a_cache_only_if_it_is_told_to_and_succeeds(store: Path) -> None:
    assert run(store, "echo 1 > /var/cache/c/x").returncode == 0
    assert run(store, "echo 1 > /var/cache/c/y; exit 7", "--save-caches").returncode == 7
    assert run(store, "ls /var/cache/c").stdout == ""
    assert run(store, "echo 1 > /var/cache/c/z", "--save-caches").returncode == 0
    assert run(store, "ls /var/cache/c").stdout == "z\n"
    seen = run(store, "echo 2 > /var/cache/c/w; echo done", "--save-caches", "--json")
    assert json.loads(seen.stdout)["stdout"] == "done\n"
    assert run(store, "ls /var/cache/c").stdout == "w\nz\n"


def test_caches_are_listed_and_removed(store: Path) -> None:
    assert dutyfree("cache", "list", "--store", store).stdout == "there are no caches\n"
    run(store, "echo 1 > /var/cache/c/x", "--save-caches")
    heading, line = dutyfree("cache", "list", "--store", store).stdout.splitlines()
    assert heading.split() == ["NAME", "OWNER", "VERSION", "SIZE", "ENTRIES", "SAVED"]
    assert line.split()[:2] == ["c", "-"]
    (found,) = json.loads(dutyfree("cache", "list", "--store", store, "--json").stdout)["caches"]
    assert (found["name"], found["owner"], found["entries"]) == ("c", "", 1)
    assert "caches" in dutyfree("image", "list", "--store", store).stdout
    wrong = dutyfree("cache", "remove", "c", "--owner", "other", "--store", store)
    assert wrong.returncode == 2
    assert "there is no cache 'c' of 'other'" in wrong.stderr
    assert dutyfree("cache", "remove", "c", "--store", store).stdout == "removed c\n"
    assert run(store, "ls /var/cache/c").stdout == ""


@pytest.mark.parametrize("wrong", ["c", "C:/x", "c:x", ":/x", "c:/proc"])
def test_a_cache_that_cannot_be_is_wrong_usage(wrong: str) -> None:
    done = dutyfree("run", "--cache", wrong, "--", "true")
    assert done.returncode == 2
    assert "--cache" in done.stderr
