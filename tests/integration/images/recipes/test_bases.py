"""What recipes start from: layouts, registries and Debian packages, noticed when they have changed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from dutyfree.errors import InfraFailed, InvalidRequest
from dutyfree.images.oci.exporting import export_image
from dutyfree.images.oci.importing import import_tar
from dutyfree.images.recipes import bases, progress
from dutyfree.images.recipes.builder import build
from dutyfree.images.recipes.debian import DebianRoot
from dutyfree.images.recipes.progress import Event, EventKind, StageProgress
from dutyfree.images.store import Store
from dutyfree.model import Action, SandboxSpec
from dutyfree.model.recipe import Recipe, Stage
from dutyfree.substrates.cell import CellSubstrate

READY_S = 20.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store").open()


def layout_of(store: Store, tmp_path: Path, content: str) -> Path:
    """An OCI layout with an image of one file."""
    (tmp_path / "file").write_text(content)
    with tarfile.open(tmp_path / "root.tar", "w") as archive:
        archive.add(tmp_path / "file", arcname="etc/file")
    target = tmp_path / f"layout-{content}"
    export_image(store, import_tar(store, tmp_path / "root.tar"), target, "app")
    return target


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """The address of an empty registry on loopback."""
    for program in ("docker-registry", "skopeo"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    storage = f"storage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}"
    (tmp_path / "config.yml").write_text(f"version: 0.1\n{storage}\nhttp: {{addr: '{address}'}}\n")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", tmp_path / "config.yml"], stdout=log, stderr=log)
        try:
            deadline_s = time.monotonic() + READY_S
            while not answers(f"http://{address}/v2/"):
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            yield address
        finally:
            process.terminate()
            process.wait(10)


def answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=1):
            return True
    except OSError:
        return False


def push(layout: Path, address: str) -> None:
    command = ["skopeo", "copy", "--quiet", "--dest-tls-verify=false", f"oci:{layout}:app:latest", address]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


async def test_a_layout_by_path_and_by_name(store: Store, tmp_path: Path) -> None:
    layout = layout_of(store, tmp_path, "one")
    by_path = await bases.find(f"oci:{layout}", store)
    by_name = await bases.find(f"oci:{layout}:app:latest", store)
    assert by_path.digest == by_name.digest
    events: list[Event] = []
    image = await by_path.obtain(store, StageProgress(events.append, "base", 0, 0))
    assert {event.kind for event in events} == {EventKind.BYTES}
    assert events[-1].done == events[-1].total
    assert events[-1].done
    assert (store.tree(image.layers[0]) / "etc" / "file").read_text() == "one"
    other = await bases.find(f"oci:{layout_of(store, tmp_path, 'two')}", store)
    assert other.digest != by_path.digest
    with pytest.raises(InvalidRequest, match="no image 'gone'"):
        await bases.find(f"oci:{layout}:gone", store)


async def test_an_image_of_the_store_by_name_and_by_digest(store: Store, tmp_path: Path) -> None:
    layout_of(store, tmp_path, "one")
    image = import_tar(store, tmp_path / "root.tar")
    store.tag("mine", image)
    by_name = await bases.find("image:mine", store)
    assert by_name.ready == image
    assert (await bases.find(f"image:{image.digest}", store)).digest == by_name.digest
    with pytest.raises(InvalidRequest, match="other"):
        await bases.find("image:other", store)


async def test_a_tag_that_moves_is_noticed_and_what_was_found_is_what_is_fetched(
    store: Store, tmp_path: Path, registry: str
) -> None:
    address = f"docker://{registry}/team/app:1"
    push(layout_of(store, tmp_path, "one"), address)
    one = await bases.find(f"oci:{address}", store)
    assert (await bases.find(f"oci:{address}", store)).digest == one.digest
    push(layout_of(store, tmp_path, "two"), address)
    two = await bases.find(f"oci:{address}", store)
    assert two.digest != one.digest
    for base, content in ((one, "one"), (two, "two")):
        image = await base.obtain(store, StageProgress(progress.ignore, "base", 0, 0))
        assert (store.tree(image.layers[0]) / "etc" / "file").read_text() == content


async def test_images_and_registries_that_are_not_there(store: Store, registry: str) -> None:
    with pytest.raises(InvalidRequest, match="gone"):
        await bases.find(f"oci:docker://{registry}/gone:1", store)
    with pytest.raises(InfraFailed):
        await bases.find("oci:docker://127.0.0.1:9/gone:1", store)


# Debian

ONE_LINE = """
# deb http://commented.example/debian bookworm main
deb [arch=amd64 signed-by=/keys/a.gpg] http://mirror.example/debian bookworm main contrib # a comment
deb http://mirror.example/debian-security bookworm-security main
deb http://docker.example/linux bookworm stable
deb-src http://mirror.example/debian bookworm main
"""
PARAGRAPHS = """\
# A comment
Types: deb deb-src
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /keys/a.gpg

Enabled: no
Types: deb
URIs: http://off.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://inline.example/debian
Suites: bookworm
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
"""


def sources(directory: Path, **files: str) -> Path:
    (directory / "sources.list.d").mkdir()
    for name, text in files.items():
        (directory / "sources.list.d" / name.replace("_", ".")).write_text(text)
    return directory


def test_the_mirrors_of_this_machine_are_used(tmp_path: Path) -> None:
    apt = sources(
        tmp_path, a_list=ONE_LINE, b_sources=PARAGRAPHS, c_disabled="deb http://x.example/debian bookworm main"
    )
    wanted = DebianRoot.parse("bookworm+g+++git", apt=apt, debian=True)
    assert wanted.packages == ("g++", "git")
    assert wanted.mirrors == (
        "deb [signed-by=/keys/a.gpg] http://mirror.example/debian bookworm main contrib",
        "deb http://mirror.example/debian-security bookworm-security main",
        "deb [signed-by=/keys/a.gpg] http://mirror.example/debian bookworm main",
        "deb [signed-by=/keys/a.gpg] http://mirror.example/debian bookworm-updates main",
        "deb http://inline.example/debian bookworm main",
    )
    other = DebianRoot.parse("trixie", apt=apt, debian=True)
    assert other.mirrors == ("deb [signed-by=/keys/a.gpg] http://mirror.example/debian trixie main contrib",)
    assert DebianRoot.parse("trixie", apt=apt, debian=False).mirrors == ()
    assert DebianRoot.parse("trixie", apt=tmp_path / "gone", debian=True).mirrors == ()


@pytest.mark.parametrize("wanted", ["", "Bookworm", "bookworm+", "bookworm+a b", "bookworm+-x", "--help", "bookworm,x"])
def test_what_is_neither_suite_nor_package(wanted: str) -> None:
    if wanted == "bookworm+":
        assert DebianRoot.parse(wanted).packages == ()
        return
    with pytest.raises(InvalidRequest, match="not a Debian"):
        DebianRoot.parse(wanted)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_debian_from_its_packages(tmp_path: Path) -> None:
    if shutil.which("mmdebstrap") is None:
        pytest.skip("mmdebstrap is missing")
    if not answers("http://deb.debian.org/debian/dists/bookworm/Release"):
        pytest.skip("no Debian mirror in reach")
    recipe = Recipe(
        "debian:bookworm+ca-certificates", (Stage("one", run=("test -e /etc/ssl/certs; cat /etc/os-release",)),)
    )
    async with CellSubstrate(store=tmp_path / "store") as cells:
        built = await build(recipe, cells, cells.store)
        assert [stage.cached for stage in built.stages] == [False, False]
        async with await cells.create(SandboxSpec(image=built.image)) as sandbox:
            seen = await sandbox.run(Action("dpkg -l ca-certificates; . /etc/os-release; echo $VERSION_CODENAME"))
            assert seen.text.endswith("bookworm\n")
            assert "\nii  ca-certificates" in seen.text
        assert [stage.cached for stage in (await build(recipe, cells, cells.store)).stages] == [True, True]
        with pytest.raises(InvalidRequest, match="no-such-suite"):
            await build(Recipe("debian:no-such-suite"), cells, cells.store)
        assert list((tmp_path / "store" / "staging").iterdir()) == []
