"""Announcements on cells, where recipes are built into layers: in the background, shown, awaited, and ended."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

import dutyfree
from dutyfree import claims
from dutyfree.cli.main import main
from dutyfree.errors import BuildFailed, InvalidRequest
from dutyfree.model import Mount, Recipe, Stage
from support.pools import until


def recipe(name: str, *lines: str) -> Recipe:
    return Recipe(stages=(Stage(name, run=(f"echo {name} > /root/{name}", *lines), cwd="/root"),))


@pytest.fixture
async def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[dutyfree.LocalHost]:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    monkeypatch.setattr(claims, "state_base", lambda: state)
    opened = dutyfree.local("cell", store=tmp_path / "store", pool=dutyfree.PoolOptions(sandboxes=8))
    try:
        await opened.__aenter__()
    except dutyfree.SubstrateUnavailable as error:
        pytest.skip(f"cells: {error}")
    try:
        yield opened
    finally:
        await opened.__aexit__(None, None, None)


async def test_announce_returns_at_once_and_the_status_shows_the_build(
    host: dutyfree.LocalHost, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = recipe("slow", "sleep 2")
    start_s = time.monotonic()
    await host.pool.announce([(slow, 2)], name="step 1")
    assert time.monotonic() - start_s < 1.5, "the build alone takes two seconds"
    assert host.pool.status().builds == {"step 1: slow": 1}
    assert host.pool.expected() == 2

    def written() -> object:
        assert main(["pool", "status", "--json"]) in (0, 1)
        return [each["builds"] for each in json.loads(capsys.readouterr().out)] == [{"step 1: slow": 1}]

    await until(written)
    assert main(["pool", "status"]) == 0
    assert "building   1 announced recipe (step 1: slow 1)" in capsys.readouterr().out
    assert main(["top", "--count", "1"]) == 0
    assert "step 1: slow 1" in capsys.readouterr().out
    await host.pool.ready(name="step 1", timeout_s=60)
    assert host.pool.status().builds == {}
    async with host.lease(slow) as box:
        assert (await box.run("cat slow")).text == "slow\n"
    assert host.pool.status().acquires == {"hit": 1}


async def test_names_mounts_and_the_own_root_are_warm(host: dutyfree.LocalHost, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "seen").write_text("mounted\n")
    await host.build(recipe("built"), name="built")
    options = {"mounts": [Mount(str(shared), "/mnt/host")], "writes": "disk"}
    await host.pool.announce([("built", 1), (None, 1)], name="step", **options)  # type: ignore[arg-type]
    await host.pool.ready(name="step", timeout_s=60)
    async with host.lease("built", **options) as one, host.lease(**options) as other:  # type: ignore[arg-type]
        assert (await one.run("cat /root/built /mnt/host/seen")).text == "built\nmounted\n"
        assert (await other.run("cat /mnt/host/seen")).text == "mounted\n"
    assert host.pool.status().acquires == {"hit": 2}
    with pytest.raises(InvalidRequest, match="no-such"):
        await host.pool.announce([("no-such-image", 1)], name="step")


async def test_a_build_that_fails_is_shown_and_raised_and_the_others_go_on(host: dutyfree.LocalHost) -> None:
    bad, good = recipe("bad", "echo no rule >&2; exit 3"), recipe("good")
    await host.pool.announce([(bad, 1), (good, 1)], name="step")
    with pytest.raises(BuildFailed) as caught:
        await host.pool.ready(name="step", timeout_s=60)
    assert caught.value.stage == "bad"
    assert "no rule" in caught.value.log
    assert "BuildFailed" in host.pool.status().build_errors["step: bad"]
    await until(lambda: host.pool.status().idle >= 1, within_s=30)
    async with host.lease(good):
        assert host.pool.status().acquires == {"hit": 1}


def is_sleeping(seconds: str) -> bool:
    """Whether a process of this machine is `sleep` with this argument."""
    wanted = f"sleep\0{seconds}\0".encode()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes() == wanted:
                return True
    return False


async def test_a_withdrawn_build_ends_and_so_does_one_at_the_end(host: dutyfree.LocalHost) -> None:
    first_s, last_s = f"600.{os.getpid()}1", f"600.{os.getpid()}2"
    await host.pool.announce([(recipe("first", f"sleep {first_s}"), 1)], name="step")
    await until(lambda: is_sleeping(first_s), within_s=30)
    await host.pool.announce([(recipe("last", f"sleep {last_s}"), 1)], name="step")
    assert host.pool.status().builds == {"step: last": 1}
    await until(lambda: is_sleeping(last_s) and not is_sleeping(first_s), within_s=30)
    await host.__aexit__(None, None, None)
    assert not is_sleeping(last_s)
