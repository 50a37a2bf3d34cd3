"""Images by the names that Docker users know, from a registry on loopback that stands for the default one."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import dutyfree
from dutyfree.errors import (
    CapacityError,
    ImageNotFound,
    InfraFailed,
    InvalidRequest,
    SubstrateUnavailable,
)
from dutyfree.images.oci.references import REGISTRY_VARIABLE
from dutyfree.images.oci.resolving import manifest_digest
from dutyfree.images.recipes.progress import Event, EventKind
from support.image_registry import need, push, served, shell_tar, write_layout
from support.shell import Shell

NAME = "tools:1.0-Slim"
IMPORT = f"dutyfree image import docker://{{}}/library/{NAME} --name {NAME}"
TOOL = b'#!/bin/sh\necho "tool $*"\n'
PASSWD = b"root:x:0:0::/root:/bin/sh\nagent:x:1000:1000::/:/bin/sh\n"
SETTINGS = {
    "Env": ["PATH=/usr/bin:/bin", "GREETING=hello there"],
    "WorkingDir": "/srv",
    "User": "agent",
    "Entrypoint": ["/bin/tool"],
    "Cmd": ["by", "default"],
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A registry with the image; its address. Its log is in the directory `registry0`."""
    home = tmp_path_factory.mktemp("registry")
    with served(home) as address:
        layer = shell_tar({"/bin/tool": TOOL, "/etc/passwd": PASSWD, "/srv/note": b"", "/bulk": os.urandom(300_000)})
        write_layout(home / "layout", [layer], SETTINGS)
        push(home / "layout", f"docker://{address}/library/{NAME}")
        yield address


@pytest.fixture(autouse=True)
def mirror(registry: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(REGISTRY_VARIABLE, registry)
    return registry


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address on which nothing listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{unused.getsockname()[1]}"


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[dutyfree.LocalHost]:
    try:
        async with dutyfree.local(store=tmp_path / "store") as host:
            yield host
    except SubstrateUnavailable as error:
        pytest.skip(f"no cells here: {error}")


async def test_an_image_is_fetched_once_and_then_needs_no_network(
    host: dutyfree.LocalHost, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with host.lease(NAME) as box:
        assert (await box.run('echo "$GREETING $PWD"; echo $USER')).text == "hello there /srv\nroot\n"
    assert [each.name for each in host.store.images()] == [NAME]
    monkeypatch.setenv(REGISTRY_VARIABLE, closed)
    async with host.lease(NAME) as box:
        assert (await box.run("pwd")).text == "/srv\n"


async def test_many_leases_wait_for_one_fetch(
    host: dutyfree.LocalHost, tmp_path_factory: pytest.TempPathFactory
) -> None:
    log = tmp_path_factory.getbasetemp() / "registry0/log"
    before = log.read_text().count("GET /v2/library/tools/manifests")
    boxes = await asyncio.gather(*(host.acquire(NAME) for _ in range(8)))
    assert {(await box.run("pwd")).text for box in boxes} == {"/srv\n"}
    await asyncio.gather(*(box.close() for box in boxes))
    requests = log.read_text().count("GET /v2/library/tools/manifests") - before
    assert 0 < requests < 8


async def test_progress_is_reported(host: dutyfree.LocalHost) -> None:
    events: list[Event] = []
    image = await host.fetch(NAME, on_progress=events.append)
    assert image.entrypoint == ("/bin/tool",)
    assert [each.kind for each in events if each.kind is not EventKind.BYTES] == [
        EventKind.STARTED,
        EventKind.LINE,
        EventKind.DONE,
    ]
    assert max(each.done or 0 for each in events if each.kind is EventKind.BYTES) > 300_000
    events.clear()
    assert await host.fetch(NAME, on_progress=events.append) == image
    assert events == []


async def test_a_registry_and_a_digest_can_be_named(host: dutyfree.LocalHost, registry: str) -> None:
    await host.fetch(f"{registry}/library/{NAME}")
    digest = await manifest_digest(f"docker://{registry}/library/{NAME}")
    async with host.lease(f"tools@{digest}") as box:
        assert (await box.run("pwd")).text == "/srv\n"
    assert len({each.digest for each in host.store.images()}) == 1


async def test_the_user_of_an_image_holds_where_it_is_asked_for(host: dutyfree.LocalHost) -> None:
    if dutyfree.Capability.USERS not in host.capabilities:
        pytest.skip("no users here")
    async with host.lease(NAME, user="image") as box:
        assert (await box.run("echo $USER")).text == "agent\n"
        assert (await box.run("echo $USER", user="root")).text == "root\n"
    for image in (None, dutyfree.Recipe()):
        with pytest.raises(InvalidRequest, match="needs an image"):
            await host.acquire(image, user="image")


async def test_what_cannot_be_fetched_gives_the_command(
    host: dutyfree.LocalHost, registry: str, closed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidRequest, match="check the image's name and tag; to fetch it: dutyfree image import"):
        await host.acquire("tools:2")
    for word in ("tools", "nothing"):
        with pytest.raises(ImageNotFound, match=f"dutyfree image import docker://{word} --name {word}"):
            await host.acquire(word)
    with pytest.raises(ImageNotFound) as caught:
        await host.acquire("0123456789ab")
    assert "import" not in str(caught.value.hint)
    monkeypatch.setenv(REGISTRY_VARIABLE, closed)
    with pytest.raises(InfraFailed, match=f"is running; to fetch it: {IMPORT.format(closed)}"):
        await host.acquire(NAME)
    monkeypatch.setenv(REGISTRY_VARIABLE, "none")
    with pytest.raises(ImageNotFound):
        await host.acquire(NAME)
    monkeypatch.setenv(REGISTRY_VARIABLE, registry)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SubstrateUnavailable, match="apt-get install skopeo; to fetch it: dutyfree image import"):
        await host.acquire(NAME)
    assert host.store.images() == []
    assert host.leases() == []


async def test_a_registry_that_never_answers_is_waited_for_no_longer_than_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv(REGISTRY_VARIABLE, f"127.0.0.1:{silent.getsockname()[1]}")
        async with dutyfree.local(store=tmp_path / "store") as host:
            started_s = loop.time()
            with pytest.raises(CapacityError, match="was not fetched within"):
                await host.acquire(NAME, timeout_s=0.5)
        assert loop.time() - started_s < 10


def test_the_command_line_fetches_and_starts_what_the_image_is_for(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    first = shell("run", "--image", NAME, "--entrypoint", "image")
    assert first.stdout == "tool by default\n"
    assert f"fetching {NAME}\nfetched {NAME} in " in first.stderr
    again = shell("run", "--image", NAME, "--entrypoint", "image", "--", "my", "words")
    assert (again.stdout, "fetch" in again.stderr) == ("tool my words\n", False)
    assert shell("run", "--image", NAME, "--", "/bin/sh", "-c", "pwd").stdout == "/srv\n"
    assert "needs an image" in shell("run", "--entrypoint", "image", code=2).stderr
    shown = shell("image", "show", NAME).stdout
    assert "user       agent\nentrypoint /bin/tool\ncommand    by default\n" in shown


def test_a_registry_whose_name_is_unknown_is_named_so(tmp_path: Path) -> None:
    need("unshare", "util-linux")
    if os.geteuid() != 0:
        pytest.skip("only root can make a network namespace here")
    shell = Shell(tmp_path)
    shell.command = ["unshare", "--net", *shell.command]
    seen = shell("run", "--image", "registry.invalid/team/app:1", "--", "true", code=3)
    assert "the registry's name cannot be resolved" in seen.stderr
    assert (
        "dutyfree image import docker://registry.invalid/team/app:1 --name registry.invalid/team/app:1" in seen.stderr
    )
