"""A store whose users are killed at any moment, and which many use at once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from dutyfree.images.store import Store
from dutyfree.model.image import Image

KILLS = 25
LONGEST_S = 0.15
STAGES = 300
USER = """
import contextlib, random, sys
from pathlib import Path
from dutyfree.errors import InvalidRequest
from dutyfree.images.store import Store
from dutyfree.model.image import Image

store = Store(Path(sys.argv[1])).open()
chance = random.Random(int(sys.argv[2]))

def layer(number):
    with store.staging() as directory:
        tree = directory / "tree"
        for part in range(5):
            (tree / str(part)).mkdir(parents=True)
            (tree / str(part) / "file").write_text(str(number) * 1000)
        return store.add(tree, f"sha256:{number:064x}", "test").digest

print("started", flush=True)
while True:
    image = Image(tuple(layer(chance.randrange(20)) for _ in range(3)), over_host=False)
    hold = store.hold(image.layers)
    store.remember(f"sha256:{chance.randrange(10):064x}", image, title="a stage")
    store.tag(f"name/{chance.randrange(3)}", image)
    with store.building(f"sha256:{chance.randrange(10):064x}", timeout_s=60):
        store.prune(keep_bytes=chance.choice([None, 0, 300_000]))
    for name in image.layers:
        store.tree(name)
    hold.release()
    with contextlib.suppress(InvalidRequest):  # others untag, too
        store.untag(f"name/{chance.randrange(3)}")
"""
PRUNER = """
import sys
from pathlib import Path
from dutyfree.images.store import Store

store = Store(Path(sys.argv[1])).open()
print("started", flush=True)
store.prune(keep_bytes=0)
sys.stdin.readline()
"""
ADDER = """
import sys
from pathlib import Path
from dutyfree.images.store import Store

store = Store(Path(sys.argv[1])).open()
with store.staging() as directory:
    tree = directory / "tree"
    tree.mkdir()
    (tree / "file").write_text("the same")
    print("ready", flush=True)
    sys.stdin.readline()
    info = store.add(tree, sys.argv[2], "test")
    print(info.created_s, flush=True)
    sys.stdin.readline()
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr.read() if process.stderr else ""
    return line.strip()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def add(store: Store, text: str) -> str:
    with store.staging() as directory:
        tree = directory / "tree"
        tree.mkdir()
        (tree / "file").write_text(text)
        return store.add(tree, "sha256:" + hashlib.sha256(text.encode()).hexdigest(), "test").digest


def test_a_store_survives_the_killing_of_its_users(tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    print(f"seed {seed}")
    chance, root = random.Random(seed), tmp_path / "images"
    swept = 0
    for kill in range(KILLS):
        with start(USER, str(root), str(chance.randrange(2**32))) as user:
            try:
                assert line_of(user) == "started"
                time.sleep(chance.uniform(0, LONGEST_S))
                assert user.poll() is None, user.stderr.read() if user.stderr else ""
            finally:
                user.kill()
        left = [*(root / "staging").iterdir(), *(root / "builds").iterdir()]
        swept += bool(left)
        with contextlib.closing(Store(root).open()) as store:
            assert store.check(deep=True) == []
            assert [*(root / "staging").iterdir(), *(root / "builds").iterdir()] == []
            usage = store.usage()
            assert usage.total_bytes == sum(store.layer(layer).size_bytes for layer in layers_of(root))
            assert store.has(add(store, f"after kill {kill}"))
    assert swept, "no kill ever came at a bad moment: the test tests nothing"


def test_a_prune_that_is_killed_halfway_leaves_no_stage_without_its_layers(tmp_path: Path) -> None:
    root = tmp_path / "images"
    with contextlib.closing(Store(root).open()) as store:
        for number in range(STAGES):
            layer = add(store, str(number))
            store.remember(layer, Image((layer,)), title="a stage")
    with start(PRUNER, str(root)) as pruner:
        try:
            assert line_of(pruner) == "started"
            while len(os.listdir(root / "stages")) == len(os.listdir(root / "layers")) == STAGES:  # noqa: PTH208
                assert pruner.poll() is None
        finally:
            pruner.kill()
    store = Store(root).open()
    assert store.check(deep=True) == []
    assert store.prune(keep_bytes=0).kept_bytes == 0
    assert list((root / "layers").iterdir()) == []


def test_two_users_at_once_survive_the_killing_of_one(tmp_path: Path) -> None:
    root = tmp_path / "images"
    with start(USER, str(root), "1") as survivor:
        try:
            assert line_of(survivor) == "started"
            for seed in range(5):
                with start(USER, str(root), str(seed)) as victim:
                    try:
                        assert line_of(victim) == "started"
                        time.sleep(LONGEST_S)
                        assert victim.poll() is None, victim.stderr.read() if victim.stderr else ""
                    finally:
                        victim.kill()
            assert survivor.poll() is None, survivor.stderr.read() if survivor.stderr else ""
        finally:
            survivor.kill()
    assert Store(root).open().check(deep=True) == []


def test_many_who_add_the_same_layer_end_with_one(tmp_path: Path) -> None:
    root, digest = tmp_path / "images", "sha256:" + "a" * 64
    with contextlib.ExitStack() as stack:
        adders = [stack.enter_context(start(ADDER, str(root), digest)) for _ in range(8)]
        try:
            assert [line_of(adder) for adder in adders] == ["ready"] * 8
            for adder in adders:
                say(adder)
            made = {line_of(adder) for adder in adders}
            assert len(made) == 1, "all were told of the same layer"
            store = Store(root).open()
            assert store.prune().layers == (), "their makers have it still"
            for adder in adders:
                say(adder)
                assert adder.wait(10) == 0
        finally:
            for adder in adders:
                adder.kill()
    assert layers_of(root) == [digest]
    assert list((root / "staging").iterdir()) == []
    assert store.check(deep=True) == []
    assert store.prune().layers == (digest,)


def layers_of(root: Path) -> list[str]:
    return [f"sha256:{path.name}" for path in (root / "layers").iterdir()]
