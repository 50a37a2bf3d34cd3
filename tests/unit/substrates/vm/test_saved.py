"""Disks and saved machines on disk: which are taken, and which go."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from dutyfree.errors import InvalidRequest, SubstrateFailed
from dutyfree.model import SandboxSpec
from dutyfree.substrates.engine.body import Marks
from dutyfree.substrates.vm.base import users_base
from dutyfree.substrates.vm.local import LocalProvider, _copy_key
from dutyfree.substrates.vm.plan import MIB, Hardware
from dutyfree.substrates.vm.saved import MAX_SAVED, Saved, SavedMachines, _make_room

needs_qemu_img = pytest.mark.skipif(shutil.which("qemu-img") is None, reason="machines: qemu-img is not installed")


def image(*words: str | Path) -> None:
    subprocess.run(["qemu-img", "create", "-q", *map(str, words)], check=True)


@needs_qemu_img
async def test_a_disk_of_the_users_refers_to_no_other_file(tmp_path: Path) -> None:
    alone, raw = tmp_path / "alone.qcow2", tmp_path / "raw"
    image("-f", "qcow2", alone, "1M")
    image("-f", "raw", raw, "1M")
    assert (await users_base(alone)).format == "qcow2"
    assert (await users_base(raw)).size_bytes == MIB
    image("-f", "qcow2", "-b", raw, "-F", "raw", tmp_path / "over")
    image("-f", "qcow2", "-o", f"data_file={tmp_path / 'data'}", tmp_path / "outside", "1M")
    image("-f", "vmdk", "-o", "subformat=monolithicFlat", tmp_path / "extents", "1M")
    for refused in ("over", "outside", "extents"):
        with pytest.raises(InvalidRequest, match="refers to other files") as caught:
            await users_base(tmp_path / refused)
        assert "qemu-img convert" in (caught.value.hint or "")


def test_those_not_used_for_longest_go_and_remains_with_them(tmp_path: Path) -> None:
    for number in range(MAX_SAVED + 1):
        place = tmp_path / f"saved-{number}"
        place.mkdir()
        os.utime(place, (number, number))
    (tmp_path / "saved-a.going" / "x").mkdir(parents=True)
    (tmp_path / "saved-b.making").mkdir()
    (tmp_path / "saved-b.lock").touch()
    _make_room(tmp_path)
    kept = {f"saved-{number}" for number in range(2, MAX_SAVED + 1)}
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "saved-b.making", "saved-b.lock"}


def test_one_that_another_process_removes_meanwhile_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = [tmp_path / f"saved-{number}" for number in range(MAX_SAVED + 1)]
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [] if pattern.endswith(".going") else listed)
    _make_room(tmp_path)


async def test_using_a_saved_machine_keeps_it(tmp_path: Path) -> None:
    hardware = Hardware(256 * MIB, 1, MIB)
    machines = SavedMachines(tmp_path, None, "tcg", "QEMU", None)  # type: ignore[arg-type]
    place = tmp_path / "saved-0"
    place.mkdir()
    (place / "state").touch()
    os.utime(place, (1, 1))
    machines._known[hardware] = Saved(place)
    assert (await machines.get(hardware)).directory == place
    assert place.stat().st_mtime > 1


def test_a_machines_own_copy_of_the_key_is_its_alone(tmp_path: Path) -> None:
    (tmp_path / "saved").write_text("KEY")
    _copy_key(tmp_path / "saved", tmp_path / "key")
    assert (tmp_path / "key").read_text() == "KEY"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


class Given:
    """Saved machines, one after the other."""

    def __init__(self, *places: Path) -> None:
        self.left = [Saved(place) for place in places]

    async def get(self, hardware: Hardware) -> Saved:
        return self.left.pop(0)


async def test_a_saved_machine_that_goes_just_then_is_replaced_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    async def restored(self: LocalProvider, saved: Saved, *_: object) -> str:
        tried.append(saved.directory.name)
        if saved.directory.name != "whole":
            raise FileNotFoundError(saved.key)
        return "node"

    monkeypatch.setattr(LocalProvider, "_restore", restored)
    provider, hardware = LocalProvider(tmp_path), Hardware(256 * MIB, 1, MIB)

    async def make(*names: str) -> object:
        machines = Given(*(tmp_path / name for name in names))
        return await provider._from_saved(machines, hardware, SandboxSpec(), Marks())  # type: ignore[arg-type]

    assert await make("gone", "whole") == "node"
    assert tried == ["gone", "whole"]
    with pytest.raises(SubstrateFailed, match="gone"):
        await make("gone", "gone too", "whole")
