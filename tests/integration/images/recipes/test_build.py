"""Recipes built on real cells: each stage once, nothing left of what failed, and nothing broken by a kill."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dutyfree.errors import ArchiveRefused, BuildFailed, InvalidRequest, Unsupported
from dutyfree.images.recipes import bases
from dutyfree.images.recipes.builder import Built, build
from dutyfree.images.recipes.lines import LOG_TAIL_BYTES
from dutyfree.images.recipes.progress import Event, EventKind
from dutyfree.images.store import Store
from dutyfree.model import Action, Capability, Image, SandboxSpec
from dutyfree.model.recipe import FileInput, GitInput, Recipe, Stage
from dutyfree.substrates.cell import CellSubstrate
from dutyfree.substrates.process import ProcessSubstrate

BUILDS = """
import asyncio, json, sys
from pathlib import Path
from dutyfree.images.recipes import file as recipe_file
from dutyfree.images.recipes.builder import build
from dutyfree.substrates.cell import CellSubstrate

async def main(store, recipe):
    async with CellSubstrate(store=Path(store)) as cells:
        print("started", flush=True)
        built = await build(recipe_file.load(recipe)[1], cells, cells.store)
        print(json.dumps([[stage.name, stage.cached] for stage in built.stages]))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def cells(tmp_path: Path) -> AsyncIterator[CellSubstrate]:
    async with CellSubstrate(store=tmp_path / "store") as substrate:
        assert {Capability.IMAGES, Capability.SNAPSHOT} <= substrate.capabilities
        yield substrate


async def seen_in(cells: CellSubstrate, image: Image, line: str) -> str:
    async with await cells.create(SandboxSpec(image=image)) as sandbox:
        seen = await sandbox.run(Action(line))
        assert seen.exit_code == 0, seen.stderr
        return seen.text


def cached(built: Built) -> list[bool]:
    return [stage.cached for stage in built.stages]


async def test_what_stages_give_and_that_they_are_built_once(cells: CellSubstrate, tmp_path: Path) -> None:
    (tmp_path / "input" / "sub").mkdir(parents=True)
    (tmp_path / "input" / "sub" / "file").write_text("content\n")
    (tmp_path / "input" / "tool").write_text("#!/bin/sh\necho tool\n")
    (tmp_path / "input" / "tool").chmod(0o755)
    recipe = Recipe(
        stages=(
            Stage("image", run=("echo one > /srv/one", "echo $A:$PWD > /srv/two"), env={"A": "1"}, cwd="/srv/new"),
            Stage(
                "custom",
                run=(
                    "cat sub/file >> /srv/one",
                    "./tool >> /srv/one",
                    "echo $A$B:$PWD >> /srv/two; rm /srv/two.not || :",
                ),
                files=(FileInput(str(tmp_path / "input"), "/srv/input"),),
                env={"B": "2"},
                cwd="/srv/input",
            ),
            Stage("last", env={"A": "3"}),
        )
    )
    first = await build(recipe, cells, cells.store)
    assert cached(first) == [True, False, False, False]
    assert await seen_in(cells, first.image, "cat /srv/one /srv/two; echo $A$B:$PWD") == (
        "one\ncontent\ntool\n1:/srv/new\n12:/srv/input\n32:/srv/input\n"
    )
    assert await seen_in(cells, first.image, "stat -c '%u:%g %a' /srv/input/sub/file") == "0:0 644\n"
    second = await build(recipe, cells, cells.store)
    assert cached(second) == [True, True, True, True]
    assert second.image == first.image
    assert [stage.digest for stage in second.stages] == [stage.digest for stage in first.stages]
    assert cells.store.check(deep=True) == []


async def test_a_common_prefix_is_shared_and_a_change_goes_on_to_all_after_it(
    cells: CellSubstrate, tmp_path: Path
) -> None:
    given = tmp_path / "given"
    given.write_text("1")
    stages = (
        Stage("one", run=("echo 1 > /srv/1",)),
        Stage("two", files=(FileInput(str(given), "/srv/2"),)),
        Stage("three", run=("echo 3 > /srv/3",)),
    )
    first = await build(Recipe(stages=stages), cells, cells.store)
    renamed = tuple(replace(stage, name=f"other-{stage.name}", timeout_s=5) for stage in stages)
    assert cached(await build(Recipe(stages=renamed), cells, cells.store)) == [True] * 4
    shorter = await build(Recipe(stages=(*stages[:2], Stage("four", run=("echo 4 > /srv/4",)))), cells, cells.store)
    assert cached(shorter) == [True, True, True, False]
    assert shorter.image.layers[:2] == first.image.layers[:2]
    given.write_text("2")
    changed = await build(Recipe(stages=stages), cells, cells.store)
    assert cached(changed) == [True, True, False, False]
    assert await seen_in(cells, changed.image, "cat /srv/2") == "2"
    assert await seen_in(cells, first.image, "cat /srv/2") == "1"


async def test_rebuild_builds_all_of_it_again(cells: CellSubstrate) -> None:
    recipe = Recipe(stages=(Stage("one", run=("cat /proc/sys/kernel/random/uuid > /srv/id",)), Stage("two")))
    first = await build(recipe, cells, cells.store)
    again = await build(recipe, cells, cells.store, rebuild=True)
    assert cached(again) == [True, False, False]
    assert again.image.layers[0] != first.image.layers[0]
    assert (await build(recipe, cells, cells.store)).image == again.image


async def test_a_stage_whose_predecessors_were_forgotten_needs_none_of_them(
    cells: CellSubstrate, tmp_path: Path
) -> None:
    tar = root_tar(tmp_path)
    recipe = Recipe(f"tar:{tar}", (Stage("one"), Stage("two")))
    first = await build(recipe, cells, cells.store)
    for stage in first.stages[:2]:
        (cells.store.root / "stages" / f"{stage.digest.removeprefix('sha256:')}.json").unlink()
    assert cached(await build(recipe, cells, cells.store)) == [True] * 3


async def test_progress_tells_of_all_that_happens(cells: CellSubstrate) -> None:
    events: list[Event] = []
    recipe = Recipe(stages=(Stage("one", run=("echo out; echo err >&2; printf '\\303'; sleep 0.1; printf '\\244'",)),))
    await build(recipe, cells, cells.store, on_progress=events.append)
    kinds = [event.kind for event in events if event.stage == "one"]
    assert kinds[:2] == [EventKind.STARTED, EventKind.LINE]
    assert kinds[-1] is EventKind.DONE
    assert events[-1].seconds is not None
    assert (events[-1].done, events[-1].total) == (1, 1)
    log = "".join(event.text for event in events if event.kind is EventKind.LOG)
    assert sorted(log.replace("ä", "").split()) == ["err", "out"]
    assert "ä" in log
    events.clear()
    await build(recipe, cells, cells.store, on_progress=events.append)
    assert [event.kind for event in events] == [EventKind.CACHED, EventKind.CACHED]


@pytest.mark.parametrize(
    ("stage", "told"),
    [
        (Stage("bad", run=("true", "echo why; exit 3")), ["line 2", "exit code 3"]),
        (Stage("bad", run=("echo why\nfalse\necho not reached",)), ["line 1", "exit code 1"]),
        (Stage("bad", run=("echo why; kill -9 $$",)), ["signal 9"]),
        (Stage("bad", run=("echo why; sleep 60",), timeout_s=1), ["within the stage's 1 s"]),
        (
            Stage("bad", run=("echo why; sleep 0.6", "sleep 0.6", "true"), timeout_s=1),
            ["line 2", "within the stage's 1 s"],
        ),
        (
            Stage("bad", run=("echo why; getent hosts example.org || { echo Could not resolve host; exit 1; }",)),
            ["netw"],
        ),
    ],
)
async def test_a_stage_that_fails_says_why_and_leaves_nothing(
    cells: CellSubstrate, stage: Stage, told: Sequence[str]
) -> None:
    good = Stage("good", run=("echo 1 > /srv/1",))
    with pytest.raises(BuildFailed) as caught:
        await build(Recipe(stages=(good, stage, Stage("never"))), cells, cells.store)
    for words in ("'bad'", *told):
        assert words in str(caught.value)
    assert caught.value.stage == "bad"
    assert "why\n" in caught.value.log
    assert "not reached" not in caught.value.log
    assert [each.title for each in cells.store.stages()] == ["good"]
    assert cells.store.check(deep=True) == []
    assert cached(await build(Recipe(stages=(good,)), cells, cells.store)) == [True, True]


async def test_of_a_long_log_the_end_is_kept(cells: CellSubstrate) -> None:
    with pytest.raises(BuildFailed) as caught:
        await build(Recipe(stages=(Stage("bad", run=("seq 1000000; exit 1",)),)), cells, cells.store)
    assert caught.value.log.endswith("999999\n1000000\n")
    assert len(caught.value.log) == LOG_TAIL_BYTES


async def test_inputs_that_cannot_be_put_in_place(cells: CellSubstrate, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_text("")
    stage = Stage("bad", files=(FileInput(str(given), "/usr"),))
    with pytest.raises(BuildFailed, match="/usr"):
        await build(Recipe(stages=(stage,)), cells, cells.store)
    stage = Stage("bad", files=(FileInput(str(tmp_path / "gone"), "/srv/x"),))
    with pytest.raises(InvalidRequest, match="gone"):
        await build(Recipe(stages=(Stage("good"), stage)), cells, cells.store)
    assert cells.store.stages() == []


async def test_an_input_that_changes_under_the_build_is_noticed(cells: CellSubstrate, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_text("before")

    def change(event: Event) -> None:
        if event.kind is EventKind.LINE:
            given.write_text("after")

    stage = Stage("one", files=(FileInput(str(given), "/srv/x"),))
    with pytest.raises(InvalidRequest, match="changed"):
        await build(Recipe(stages=(stage,)), cells, cells.store, on_progress=change)
    assert cells.store.stages() == []


async def test_a_repository_at_a_commit(cells: CellSubstrate, tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    line = "git init -q . && echo 1 > f && git add f && git {id} commit -qm 1 && echo 2 > f && git {id} commit -qam 2"
    origin.mkdir()
    shell(line.format(id="-c user.name=a -c user.email=a@example.org"), cwd=origin)
    commit = shell("git rev-parse HEAD~1", cwd=origin).strip()
    stage = Stage("repository", git=(GitInput(str(origin), commit, "/src/r"),), cwd="/src/r")
    built = await build(Recipe(stages=(stage,)), cells, cells.store)
    seen = await seen_in(
        cells, built.image, "cat f; git status --porcelain; git rev-parse HEAD; git log --oneline | wc -l"
    )
    assert seen == f"1\n{commit}\n1\n"
    elsewhere = replace(stage, git=(GitInput("/nowhere", commit, "/src/r"),))
    assert cached(await build(Recipe(stages=(elsewhere,)), cells, cells.store)) == [True, True]
    unknown = replace(stage, git=(GitInput(str(origin), "0" * 40, "/src/r"),))
    with pytest.raises(InvalidRequest, match="0000000"):
        await build(Recipe(stages=(unknown,)), cells, cells.store)


async def test_a_build_that_is_cancelled_leaves_nothing_and_lets_others_in(cells: CellSubstrate) -> None:
    running = asyncio.Event()
    recipe = Recipe(stages=(Stage("one", run=("echo here; sleep 2",)),))
    first = asyncio.create_task(build(recipe, cells, cells.store, on_progress=lambda event: tell(event, running)))
    await running.wait()
    waiting = asyncio.Event()
    second = asyncio.create_task(build(recipe, cells, cells.store, on_progress=lambda event: wait(event, waiting)))
    await waiting.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert cached(await second) == [True, False]
    assert cells.store.check() == []


def tell(event: Event, running: asyncio.Event) -> None:
    if event.kind is EventKind.LOG:
        running.set()


def wait(event: Event, waiting: asyncio.Event) -> None:
    if event.kind is EventKind.WAITING:
        waiting.set()


async def test_a_substrate_without_images_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store").open()
    async with ProcessSubstrate() as substrate:
        with pytest.raises(Unsupported, match="cannot build"):
            await build(Recipe(stages=(Stage("one"),)), substrate, store)


# Bases


def root_tar(tmp_path: Path) -> Path:
    """A root file system with a shell in it, at `tmp_path`/root and in a tar."""
    root = tmp_path / "root"
    for name in ("bin", "etc", "tmp", "root", "proc", "sys", "dev"):
        (root / name).mkdir(parents=True)
    shell("cp -L /bin/sh /bin/cat bin/; echo mine > etc/mine", cwd=root)
    shell("cp -L --parents $(ldd /bin/sh /bin/cat | grep -o '/[^ :]*\\.so[^ :]*' | sort -u) .", cwd=root)
    tar = tmp_path / "root.tar.gz"
    with tarfile.open(tar, "w:gz") as archive:
        archive.add(root, arcname=".")
    return tar


async def test_tars_and_directories_as_bases(cells: CellSubstrate, tmp_path: Path) -> None:
    tar = root_tar(tmp_path)
    stage = Stage("one", run=("cat /etc/mine > /etc/copy",))
    for base in (f"tar:{tar}", f"dir:{tmp_path / 'root'}"):
        events: list[Event] = []
        first = await build(Recipe(base, (stage,)), cells, cells.store, on_progress=events.append)
        assert cached(first) == [False, False]
        assert not first.image.over_host
        assert any(event.kind is EventKind.BYTES and event.done for event in events)
        assert await seen_in(cells, first.image, "cat /etc/copy") == "mine\n"
        assert cached(await build(Recipe(base, (stage,)), cells, cells.store)) == [True, True]
    (tmp_path / "root" / "etc" / "mine").write_text("other\n")
    changed = await build(Recipe(f"dir:{tmp_path / 'root'}", (stage,)), cells, cells.store)
    assert cached(changed) == [False, False]
    assert await seen_in(cells, changed.image, "cat /etc/copy") == "other\n"
    tar.write_bytes(b"not a tar" * 1000)
    with pytest.raises(ArchiveRefused):
        await build(Recipe(f"tar:{tar}", (stage,)), cells, cells.store)
    for base in ("tar:/gone", "dir:/gone", "oci:/gone"):
        with pytest.raises(InvalidRequest, match="/gone"):
            await build(Recipe(base), cells, cells.store)
    assert cells.store.check(deep=True) == []


def test_the_identity_of_the_host_is_cheap_and_the_same_twice() -> None:
    first = bases.host_identity()
    start_s = time.perf_counter()
    assert bases.host_identity() == first
    assert time.perf_counter() - start_s < 0.5, "a few milliseconds on a quiet machine"


# Many builders, and killed ones


@pytest.fixture
def recipe_path(tmp_path: Path) -> Path:
    """A recipe with everything that can be interrupted: files, a repository, lines that write."""
    (tmp_path / "files").mkdir()
    for number in range(50):
        (tmp_path / "files" / str(number)).write_text("x" * 1000 * number)
    origin = tmp_path / "origin"
    origin.mkdir()
    shell("git init -q . && echo 1 > f && git add f", cwd=origin)
    shell("git -c user.name=a -c user.email=a@example.org commit -qm 1", cwd=origin)
    commit = shell("git rev-parse HEAD", cwd=origin).strip()
    path = tmp_path / "recipe.toml"
    path.write_text(f"""
[[stage]]
name = "image"
run = ["mkdir -p /srv/many && cd /srv/many && seq 300 | xargs touch", "rm /srv/many/7; sleep 0.05"]
[[stage]]
name = "repository"
git = {{ url = "origin", commit = "{commit}", target = "/src" }}
[[stage]]
name = "dependencies"
files = [{{ source = "files", target = "/srv/files" }}]
run = "cat /srv/files/* > /srv/all; sleep 0.05"
[[stage]]
name = "last"
run = "rm -r /srv/many; test -s /srv/all; test -e /src/f"
""")
    return path


def start(tmp_path: Path, recipe: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", BUILDS, str(tmp_path / "shared"), str(recipe)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> list[tuple[str, bool]]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return [(name, cached) for name, cached in json.loads(out.splitlines()[-1])]


def test_eight_builders_build_each_stage_once(tmp_path: Path, recipe_path: Path) -> None:
    builders = [start(tmp_path, recipe_path) for _ in range(8)]
    outcomes = [finish(builder) for builder in builders]
    for name in ("image", "repository", "dependencies", "last"):
        assert [(name, False) in outcome for outcome in outcomes].count(True) == 1, name
    assert Store(tmp_path / "shared").open().check(deep=True) == []


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_builds_leave_a_sound_store(tmp_path: Path, recipe_path: Path, kills: int) -> None:
    chance = random.Random(kills)
    start_s = time.monotonic()
    finish(start(tmp_path / "unhurried", recipe_path))
    whole_s = time.monotonic() - start_s
    died = 0
    for number in range(kills):
        builder = start(tmp_path, recipe_path)
        assert builder.stdout is not None
        assert builder.stdout.readline() == "started\n"
        time.sleep(chance.uniform(0, min(whole_s, 1.0)))
        builder.send_signal(signal.SIGKILL)
        builder.communicate(timeout=30)
        died += builder.returncode == -signal.SIGKILL
        store = Store(tmp_path / "shared").open()
        assert store.check(deep=True) == [], f"after kill {number}"
        if len(store.stages()) == 4:  # there must be something to interrupt
            assert store.prune(older_than_s=0).layers
    assert died > 0
    finish(start(tmp_path, recipe_path))
    assert all(cached for _, cached in finish(start(tmp_path, recipe_path)))
    assert Store(tmp_path / "shared").open().check(deep=True) == []


def shell(line: str, cwd: Path) -> str:
    env = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
    done = subprocess.run(["sh", "-ec", line], cwd=cwd, env=env, capture_output=True, text=True, check=True)
    return done.stdout
