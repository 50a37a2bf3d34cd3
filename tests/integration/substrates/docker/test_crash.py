"""What is left when our process, or the engine, is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("aiodocker")

from dutyfree.contract import Sandbox
from dutyfree.errors import InfraFailed, SandboxGone
from dutyfree.model import Action, Observation, SandboxSpec
from dutyfree.substrates.docker import DockerSubstrate, plan
from dutyfree.substrates.docker.plan import GUEST, OWNER_LABEL, SNAPSHOT_LABEL
from support.docker_engine import Engine, any_engine, own_engine

ALIVE = 20
READY_S = 90.0
WITHIN_S = 5.0
PRODUCER = """
import asyncio, sys, time
from dutyfree.model import SandboxSpec
from dutyfree.substrates.docker import DockerSubstrate, plan

async def main(host, image, store, count):
    substrate = DockerSubstrate(host=host, image=image, store=store)
    await substrate.open()
    boxes = [await substrate.create(SandboxSpec()) for _ in range(count)]
    await boxes[0].snapshot()
    # What a creation leaves that is killed before its start: nothing ends by itself there.
    engine = substrate._engine
    known = await substrate.images.provide(substrate.image_for(SandboxSpec()))
    marks = {"owner": substrate.owner, "user": "0:0", "runtime": None}
    await engine.create(plan.container(known.id, SandboxSpec(), engine.facts, **marks))
    print(substrate.owner, flush=True)
    time.sleep(600)

asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with any_engine() as engine:
        engine.import_bare_image()
        yield engine


def everything(engine: Engine) -> set[str]:
    return (
        {f"container {each}" for each in engine.lines("ps", "-aq", "--no-trunc")}
        | {f"image {each}" for each in engine.lines("images", "-aq", "--no-trunc")}
        | {f"volume {each}" for each in engine.lines("volume", "ls", "-q")}
    )


def marked(engine: Engine, owner: str) -> set[str]:
    mark = f"label={OWNER_LABEL}={owner}"
    containers = engine.lines("ps", "-aq", "--no-trunc", "--filter", mark)
    images = engine.lines("images", "-aq", "--no-trunc", "--filter", f"label={SNAPSHOT_LABEL}={owner}")
    volumes = engine.lines("volume", "ls", "-q", "--filter", mark)
    return {
        *(f"container {each}" for each in containers),
        *(f"image {each}" for each in images),
        *(f"volume {each}" for each in volumes),
    }


@pytest.mark.alone  # any other substrate of the kind that opens meanwhile cleans up, too
@pytest.mark.slow
@pytest.mark.timeout(240)
async def test_a_killed_process_leaves_what_the_next_one_removes_and_nothing_else_is_touched(
    engine: Engine, tmp_path: Path
) -> None:
    image, store = engine.import_bare_image(), tmp_path / "store"
    strangers = [
        engine.docker("create", "--network", "none", image, "/none"),
        engine.docker("create", "--network", "none", "--label", f"{OWNER_LABEL}=somebody", image, "/none"),
    ]
    async with (
        DockerSubstrate(host=engine.host, image=image, store=store) as living,
        await living.create(SandboxSpec()),
    ):
        theirs = marked(engine, living.owner)
        owner = await asyncio.to_thread(_killed_with_sandboxes, engine, image, store)
        # What was running ends with its stream, at once; the rest waits for us.
        left = marked(engine, owner)
        deadline_s = time.monotonic() + WITHIN_S
        while len(left) > 3 and time.monotonic() < deadline_s:
            await asyncio.sleep(0.2)
            left = marked(engine, owner)
        assert sorted(each.split()[0] for each in left) == ["container", "image", "volume"]
        async with DockerSubstrate(host=engine.host, image=image, store=store):
            assert marked(engine, owner) == set()
            assert {f"container {each}" for each in strangers} | theirs <= everything(engine)
    engine.docker("rm", *strangers)


def _killed_with_sandboxes(engine: Engine, image: str, store: Path) -> str:
    """Kill a process that has sandboxes; the name of its claim."""
    command = [sys.executable, "-c", PRODUCER, engine.host, image, str(store), str(ALIVE)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        owner = process.stdout.readline().strip()
        try:
            assert len(marked(engine, owner)) == ALIVE + 3
        finally:
            process.kill()
    return owner


@pytest.mark.alone  # any other substrate of the kind that opens meanwhile cleans up, too
async def test_what_others_made_of_what_was_ours_is_theirs(engine: Engine, tmp_path: Path) -> None:
    image, name = engine.import_bare_image(), "dutyfree-test/heir:latest"
    owner = _died_with_a_claim()

    def create(*arguments: str) -> str:
        return engine.docker("create", "--network", "none", *arguments, "/none")

    def commit(container: str, *arguments: str) -> str:
        return engine.docker("commit", "--change", f'LABEL {SNAPSHOT_LABEL}="{owner}"', container, *arguments)

    # Whatever is made of these inherits the labels of a process that is dead.
    containers = [create("--label", f"{OWNER_LABEL}={owner}", image)]
    snapshots = [commit(containers[0]), commit(containers[0], name)]
    containers.append(create(snapshots[0]))
    nobodys = commit(containers[0])
    try:
        async with DockerSubstrate(host=engine.host, image=image, store=tmp_path / "store"):
            left = everything(engine)
        assert {f"container {each}" for each in containers} | {f"image {each}" for each in snapshots} <= left
        assert f"image {nobodys}" not in left
    finally:
        engine.docker("rm", *containers)
        engine.docker("rmi", *snapshots)


def _died_with_a_claim() -> str:
    """The name of a claim of a process that has ended."""
    command = [sys.executable, "-c", "from dutyfree import claims; print(claims.claim('docker').name)"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


async def test_what_a_closed_substrate_could_not_remove_goes_with_the_next_one(engine: Engine, tmp_path: Path) -> None:
    substrates = [DockerSubstrate(host=engine.host, image=engine.import_bare_image(), store=tmp_path) for _ in range(2)]
    first, second = substrates
    await first.open()
    await (await first.create(SandboxSpec())).destroy()
    client, owner = first._engine, first.owner
    assert client is not None
    known = await first.images.provide(first.image_for(SandboxSpec()))
    await client.create(plan.container(known.id, SandboxSpec(), client.facts, owner=owner, user="0:0", runtime=None))
    await first.close()
    assert sorted(each.split()[0] for each in marked(engine, owner)) == ["container", "volume"]
    async with second:
        assert marked(engine, owner) == set()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_an_engine_that_dies_is_an_infrastructure_failure_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with own_engine() as engine:
        image = engine.import_bare_image()
        doomed = [
            DockerSubstrate(host=engine.host, image=image, store=tmp_path / "store", path=path)
            for path in ("guest", "exec")
        ]
        lives = [await _life(each) for each in doomed]
        await asyncio.sleep(0.5)
        os.kill(engine.pid, number)
        began_s = time.monotonic()
        for box, running in lives:
            with pytest.raises(InfraFailed):
                await asyncio.wait_for(running, WITHIN_S)
            with pytest.raises((InfraFailed, SandboxGone)):
                await asyncio.wait_for(box.run(Action(["/none"])), WITHIN_S)
        for each in doomed:
            with pytest.raises(InfraFailed):
                await asyncio.wait_for(each.create(SandboxSpec()), WITHIN_S)
        assert time.monotonic() - began_s < WITHIN_S
        for each in doomed:
            with pytest.raises(InfraFailed):
                await each.close()
        engine.start()
        async with DockerSubstrate(host=engine.host, image=image, store=tmp_path / "store") as again:
            # What has ended meanwhile an engine removes by itself, some time after it answers again.
            left, deadline_s = engine.lines("ps", "-aq"), time.monotonic() + WITHIN_S
            while left and time.monotonic() < deadline_s:
                await asyncio.sleep(0.2)
                left = engine.lines("ps", "-aq")
            assert left == set()
            await (await again.create(SandboxSpec())).destroy()


async def _life(docker: DockerSubstrate) -> tuple[Sandbox, asyncio.Task[Observation]]:
    """A sandbox, and an action that has begun in it and does not end."""
    await docker.open()
    box = await docker.create(SandboxSpec())
    stream = box.stream(Action([GUEST, "--stdio"]))  # there is no other program; it waits for its input to end
    await stream.write(b"")
    return box, asyncio.create_task(stream.wait())
