"""Devices of images: who holds one keeps it. The real maker of file systems, or one that misbehaves."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dutyfree.errors import CapacityError, DeadlineExceeded, SubstrateFailed
from dutyfree.images.store import Store
from dutyfree.model import Image
from dutyfree.substrates.qemu import blocks


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "store")
    made.open()
    yield made
    made.close()


@pytest.fixture
def devices(tmp_path: Path) -> blocks.Devices:
    for name in ("images", "own"):
        (tmp_path / name).mkdir()
    return blocks.Devices(tmp_path / "images", tmp_path / "own")


def image(store: Store, directory: Path, content: str) -> Image:
    directory.mkdir()
    (directory / "file").write_text(content)
    return Image((store.adopt(directory, "test").digest,), over_host=False)


def maker(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `script`, of the shell, make file systems."""
    directory.mkdir()
    path = directory / "sqfstar"
    path.write_text(f"#!/bin/sh\nfor target; do :; done\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_a_device_that_is_held_outlives_those_that_are_kept(
    tmp_path: Path, store: Store, devices: blocks.Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker(tmp_path / "bin", 'cat > "$target"', monkeypatch)
    monkeypatch.setattr(blocks, "_MAX_KEPT", 1)
    first = image(store, tmp_path / "first", "first")
    held = devices.hold(store, first)
    content = held.stat()
    for name in ("second", "third"):
        devices.release(devices.hold(store, image(store, tmp_path / name, name)))
    assert len(list((tmp_path / "images").glob("*.squashfs"))) == 1
    assert os.path.samestat(held.stat(), content)
    assert devices.hold(store, first) == held
    devices.release(held)
    assert held.exists()
    devices.release(held)
    assert not list((tmp_path / "own").iterdir())


@pytest.mark.skipif(shutil.which("sqfstar") is None, reason="sqfstar is not installed")
def test_the_real_maker_makes_a_file_system_of_the_size_of_all(
    tmp_path: Path, store: Store, devices: blocks.Devices
) -> None:
    device = devices.hold(store, image(store, tmp_path / "tree", "x"))
    assert device.stat().st_size == blocks.CAPACITY_BYTES
    with device.open("rb") as file:
        assert file.read(4) == b"hsqs"


def test_a_maker_that_talks_much_is_listened_to(
    tmp_path: Path, store: Store, devices: blocks.Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = "head -c 1000000 /dev/zero | tr '\\0' w >&2"
    maker(tmp_path / "bin", f'{talk}; cat > /dev/null; echo "No space left on device" >&2; exit 1', monkeypatch)
    with pytest.raises(CapacityError, match="No space left"):
        devices.hold(store, image(store, tmp_path / "tree", "x" * 10_000_000))
    assert not list((tmp_path / "own").iterdir())


def test_a_maker_that_ends_early_says_why(
    tmp_path: Path, store: Store, devices: blocks.Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker(tmp_path / "bin", "echo broken >&2; exit 1", monkeypatch)
    with pytest.raises(SubstrateFailed, match="broken"):
        devices.hold(store, image(store, tmp_path / "tree", "x" * 10_000_000))


def test_a_maker_that_reads_nothing_is_killed(
    tmp_path: Path, store: Store, devices: blocks.Devices, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker(tmp_path / "bin", "exec sleep 600", monkeypatch)
    monkeypatch.setattr(blocks, "_BUILD_TIMEOUT_S", 0.3)
    start_s = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        devices.hold(store, image(store, tmp_path / "tree", "x" * 10_000_000))
    assert time.monotonic() - start_s < 20


def test_what_another_process_has_taken_away_is_old(tmp_path: Path) -> None:
    assert blocks.last_used_ns(tmp_path / "absent") == 0
