"""Containers of a real engine, from an image with nothing in it: no shell, no C library, no program at all."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("aiodocker")

from dutyfree.errors import CallerError, InfraFailed, InvalidRequest, SubstrateFailed, SubstrateUnavailable, Unsupported
from dutyfree.model import Action, Capability, Image, Network, Phase, SandboxSpec, Span
from dutyfree.substrates.docker import DockerSubstrate, GVisorDockerSubstrate
from dutyfree.substrates.docker.plan import GUEST, OWNER_LABEL, SNAPSHOT_LABEL
from support.docker_engine import Engine, any_engine

CONTAINERS = 200
AT_ONCE = 16


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with any_engine() as engine:
        engine.import_bare_image()
        yield engine


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def substrate(engine: Engine, store: Path, **options: str) -> DockerSubstrate:
    return DockerSubstrate(host=engine.host, image=engine.import_bare_image(), store=store, **options)


def ours(engine: Engine, owner: str) -> set[str]:
    """Everything in the engine that bears the label."""
    mark = f"label={OWNER_LABEL}={owner}"
    snapshots = f"label={SNAPSHOT_LABEL}={owner}"
    return (
        engine.lines("ps", "-aq", "--filter", mark)
        | engine.lines("volume", "ls", "-q", "--filter", mark)
        | engine.lines("images", "-aq", "--filter", snapshots)
    )


@pytest.mark.parametrize("path", ["guest", "exec"])
async def test_an_image_with_nothing_in_it_works(engine: Engine, store: Path, path: str) -> None:
    async with substrate(engine, store, path=path) as docker, await docker.create(SandboxSpec()) as box:
        # The only program there is is our own.
        seen = await box.run(Action([GUEST]))
        assert (seen.exit_code, seen.stderr[:6]) == (2, b"usage:")
        assert (await box.run(Action("true"))).exit_code == 127
        await box.files.write("/tmp/file", b"content")
        assert await box.files.read("/tmp/file") == b"content"
        owner = docker.owner
        assert ours(engine, owner)
    assert ours(engine, owner) == set()


async def test_the_guest_cannot_be_changed_from_inside_and_is_in_no_snapshot(engine: Engine, store: Path) -> None:
    async with substrate(engine, store) as docker, await docker.create(SandboxSpec()) as box:
        with pytest.raises(CallerError, match="Read-only file system"):
            await box.files.write(GUEST, b"#!/bin/evil")
        async with await box.snapshot() as snapshot:
            name = engine.docker("create", "--network", "none", snapshot.id, "/none")
            try:
                assert engine.docker("diff", name) == ""
                assert "guest" not in engine.docker("history", "--no-trunc", snapshot.id)
            finally:
                engine.docker("rm", name)


async def test_reset_snapshot_and_fork(engine: Engine, store: Path) -> None:
    async with substrate(engine, store) as docker:
        box = await docker.create(SandboxSpec())
        await box.files.write("/tmp/file", b"moment")
        forks = await box.fork(3)
        await box.files.write("/tmp/file", b"later")
        assert [await each.files.read("/tmp/file") for each in forks] == [b"moment"] * 3
        await forks[0].files.write("/tmp/file", b"changed")
        await forks[0].reset()
        assert await forks[0].files.read("/tmp/file") == b"moment"
        await box.reset()
        with pytest.raises(CallerError):
            await box.files.read("/tmp/file")
        owner = docker.owner
    assert ours(engine, owner) == set()


async def test_a_snapshot_can_be_saved_and_started_from_by_another_substrate(engine: Engine, store: Path) -> None:
    async with substrate(engine, store) as docker, await docker.create(SandboxSpec()) as box:
        await box.files.write("/tmp/file", b"kept")
        async with await box.snapshot() as snapshot:
            image = await snapshot.save()
    assert image.is_stored
    async with substrate(engine, store) as docker:
        async with await docker.create(SandboxSpec(image=image)) as box:
            assert await box.files.read("/tmp/file") == b"kept"
        loaded = await docker.images.provide(image)
    engine.docker("rmi", "-f", loaded.id)


async def test_networks(engine: Engine, store: Path) -> None:
    async def interfaces(network: Network) -> set[str]:
        async with await docker.create(SandboxSpec(network=network)) as box:
            lines = (await box.files.read("/proc/net/dev")).decode().splitlines()[2:]
            return {line.partition(":")[0].strip() for line in lines}

    async with substrate(engine, store) as docker:
        assert await interfaces(Network.NONE) == {"lo"}
        assert await interfaces(Network.HOST) == {name for _, name in socket.if_nameindex()}
        if Capability.BRIDGE_NETWORK in docker.capabilities:
            assert await interfaces(Network.BRIDGE) == {"lo", "eth0"}
        else:
            with pytest.raises(Unsupported):
                await interfaces(Network.BRIDGE)


@pytest.mark.parametrize("path", ["guest", "exec"])
async def test_another_user(engine: Engine, store: Path, path: str) -> None:
    docker = substrate(engine, store, user="1000:1001", path=path)
    async with docker, await docker.create(SandboxSpec()) as box:
        status = (await box.files.read("/proc/self/status")).decode().splitlines()
        assert "Uid:\t1000\t1000\t1000\t1000" in status
        assert "Gid:\t1001\t1001\t1001\t1001" in status


async def test_a_creation_is_split_at_the_engines_own_boundaries(engine: Engine, store: Path) -> None:
    spans: list[Span] = []
    async with substrate(engine, store) as docker:
        async with await docker.create(SandboxSpec(), spans.append):
            began_ns, ended_ns = spans[0].start_ns, time.monotonic_ns()
        steps = [each for each in spans if each.name]
        assert [each.name for each in steps] == ["image", "inject", "create", "attach", "start", "handshake"]
        assert steps[-1].phase is Phase.READY
        told_ns = sum(each.end_ns - each.start_ns for each in steps)
        assert 0.95 < told_ns / (steps[-1].end_ns - began_ns) <= 1
        assert steps[-1].end_ns <= ended_ns


@pytest.mark.slow
@pytest.mark.timeout(420)
async def test_hundreds_of_containers_leave_nothing(engine: Engine, store: Path) -> None:
    async with substrate(engine, store) as docker:
        room = asyncio.Semaphore(AT_ONCE)

        async def live(number: int) -> bytes:
            async with room, await docker.create(SandboxSpec()) as box:
                await box.files.write("/tmp/number", b"%d" % number)
                return await box.files.read("/tmp/number")

        seen = await asyncio.gather(*(live(number) for number in range(CONTAINERS)))
        assert seen == [b"%d" % number for number in range(CONTAINERS)]
        assert len(ours(engine, docker.owner)) == 1  # the volume with the guest
        owner = docker.owner
    assert ours(engine, owner) == set()


async def test_cancelled_creations_leave_nothing(engine: Engine, store: Path) -> None:
    async with substrate(engine, store) as docker:
        await (await docker.create(SandboxSpec())).destroy()
        for moment in range(12):
            making = asyncio.create_task(docker.create(SandboxSpec()))
            await asyncio.sleep(moment * 0.02)
            making.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await making).destroy()
        assert len(ours(engine, docker.owner)) == 1


async def test_a_volume_that_somebody_removed_is_made_again(engine: Engine, store: Path) -> None:
    async with substrate(engine, store) as docker:
        await (await docker.create(SandboxSpec())).destroy()
        engine.docker(
            "volume", "rm", *engine.lines("volume", "ls", "-q", "--filter", f"label={OWNER_LABEL}={docker.owner}")
        )
        with pytest.raises(SubstrateFailed):
            await docker.create(SandboxSpec())
        await (await docker.create(SandboxSpec())).destroy()


async def test_images_that_cannot_be_had(engine: Engine, store: Path) -> None:
    async with substrate(engine, store) as docker:
        nowhere = Image(reference="127.0.0.1:1/nowhere:1", over_host=False)
        with pytest.raises(SubstrateFailed, match=r"did not pull.*hint: load it"):
            await docker.create(SandboxSpec(image=nowhere))
        unknown = Image(reference="sha256:" + "0" * 64, over_host=False)
        with pytest.raises(InvalidRequest, match="no image"):
            await docker.create(SandboxSpec(image=unknown))


async def test_an_engine_that_refuses_the_user(engine: Engine, store: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody who is not let in")
    docker = substrate(engine, store)
    os.seteuid(65534)
    try:
        with pytest.raises(SubstrateUnavailable, match=r"no permission.*hint: join the group"):
            await docker.open()
    finally:
        os.seteuid(0)


async def test_a_runtime_that_the_engine_does_not_have(engine: Engine, store: Path) -> None:
    with pytest.raises(SubstrateUnavailable, match=r"no runtime 'nowhere'; it has .*runc"):
        await substrate(engine, store, runtime="nowhere").open()


@pytest.mark.parametrize("path", ["guest", "exec"])
async def test_gvisor(engine: Engine, store: Path, path: str) -> None:
    docker = GVisorDockerSubstrate(host=engine.host, image=engine.import_bare_image(), store=store, path=path)
    try:
        await docker.open()
    except SubstrateUnavailable as error:
        pytest.skip(str(error))
    async with docker, await docker.create(SandboxSpec()) as box:
        assert (await box.run(Action([GUEST]))).exit_code == 2
        assert (await box.files.read("/proc/version")).startswith(b"Linux version 4.4.0 ")  # as gVisor says of itself


async def test_an_engine_that_is_not_open(engine: Engine, store: Path) -> None:
    docker = substrate(engine, store)
    with pytest.raises((CallerError, InfraFailed)):
        await docker.create(SandboxSpec())
    await docker.close()
