"""Caches whose fillers are killed at any moment: no version is half-published, and nothing that was saved is lost."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from dutyfree.images.store import Store

KILLS = 20
LONGEST_S = 0.12
FILLERS = 2
FILES = 30
FILLER = f"""
import sys, tempfile
from pathlib import Path
from dutyfree.images.caches import copy_changes, merge_changes
from dutyfree.images.store import Store
from dutyfree.model import Cache

store, cache, name = Store(Path(sys.argv[1])).open(), Cache("c", "/c"), sys.argv[2]
print("started", flush=True)
number = 0
while True:
    with tempfile.TemporaryDirectory() as upper:
        place = Path(upper, name, str(number))
        place.mkdir(parents=True)
        for each in range({FILES}):
            (place / str(each)).write_text(name)
        with store.staging() as scratch:
            left_out = copy_changes(cache, Path(upper), scratch / "changes", lambda _: None)
            merge_changes(store, cache, scratch / "changes", left_out, lambda _: None)
    print(f"{{name}}/{{number}}", flush=True)
    number += 1
"""


def test_fillers_that_are_killed_lose_and_leave_nothing(tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    chance, root = random.Random(seed), tmp_path / "images"
    saved: set[str] = set()
    swept = 0
    for kill in range(KILLS):
        command = [sys.executable, "-c", FILLER, str(root)]
        fillers = [
            subprocess.Popen([*command, f"{kill}-{number}"], stdout=subprocess.PIPE, text=True)
            for number in range(FILLERS)
        ]
        for filler in fillers:
            assert filler.stdout is not None
            assert filler.stdout.readline() == "started\n"
        time.sleep(chance.uniform(0, LONGEST_S))
        for filler in fillers:
            assert filler.poll() is None
            filler.kill()
        for filler in fillers:
            told, _ = filler.communicate()
            saved |= {line.strip() for line in told.splitlines(keepends=True) if line.endswith("\n")}
        swept += bool([*(root / "staging").iterdir(), *(root / "builds").iterdir()])
        check_version(root, saved)
    assert swept, "no kill ever came at a bad moment: the test tests nothing"
    assert saved


def check_version(root: Path, saved: set[str]) -> None:
    with contextlib.closing(Store(root).open()) as store:
        assert store.check(deep=True) == []
        assert [*(root / "staging").iterdir(), *(root / "builds").iterdir()] == []
        versions = store.caches()
        if not versions:
            assert not saved
            return
        tree = store.tree(versions[0].layer)
        found = {f"{path.parent.name}/{path.name}" for path in tree.glob("*/*")}
        assert saved <= found
        for place in found:  # each fill is there whole, or not at all
            assert {each.name: each.read_text() for each in (tree / place).iterdir()} == {
                str(number): place.partition("/")[0] for number in range(FILES)
            }
        store.prune()  # a layer whose filler was killed before it was published
        assert [path.name for path in store.layers_directory.iterdir()] == [versions[0].layer.removeprefix("sha256:")]
