"""What is remembered of a host, and what is given back whatever else fails. No machine is started."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dutyfree import claims
from dutyfree.errors import CapacityError, DeadlineExceeded, DutyfreeError, SubstrateFailed
from dutyfree.model import Resources, SandboxSpec
from dutyfree.substrates.engine import Marks
from dutyfree.substrates.qemu import MicroVMSubstrate, build_dir
from dutyfree.substrates.qemu.kernel import Kernel
from dutyfree.substrates.qemu.plan import Build
from dutyfree.substrates.qemu.saved import Saved
from dutyfree.substrates.qemu.snapshot import Frozen, FrozenMachines


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> build_dir.BuildDir:
    monkeypatch.setenv("DUTYFREE_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(build_dir, "KVM", tmp_path / "kvm")
    (tmp_path / "kvm").touch()
    kernel = Kernel(tmp_path / "vmlinuz", tmp_path)
    made = build_dir.BuildDir(kernel, claims.Claim("1-000000-000000000000", tmp_path, -1))
    made.own.mkdir(parents=True)
    return made


class Probe:
    """Stands for the machine that is started to find out; fails with the given errors, or works."""

    def __init__(self, *outcomes: DutyfreeError | None) -> None:
        self.outcomes = list(outcomes)

    async def __call__(self, *_: Any) -> Probe:
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return self

    async def end(self) -> None:
        pass


async def test_a_machine_that_was_late_speaks_against_kvm_for_a_while_only(
    place: build_dir.BuildDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_boot_blank", Probe(DeadlineExceeded("late"), None))
    assert not await place._kvm_works()
    assert not await place._kvm_works(), "asked again too soon"
    monkeypatch.setattr(build_dir, "_KVM_RETRY_S", 0)
    assert await place._kvm_works()
    assert await place._kvm_works()


async def test_a_full_disk_says_nothing_of_kvm_and_a_refusal_does(
    place: build_dir.BuildDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "_boot_blank", Probe(CapacityError("full"), SubstrateFailed("no KVM")))
    with pytest.raises(CapacityError):
        await place._kvm_works()
    assert not await place._kvm_works()
    assert not await place._kvm_works()


class Held:
    """Something that is to be given back."""

    def __init__(self) -> None:
        self.given_back = False

    def release(self) -> None:
        self.given_back = True

    async def close(self) -> None:
        self.given_back = True


async def test_everything_is_given_back_though_a_machine_does_not_die(monkeypatch: pytest.MonkeyPatch) -> None:
    substrate = MicroVMSubstrate(image="none", standby=1)
    claim, place, closed = Held(), Held(), []

    async def clear() -> None:
        raise SubstrateFailed("it does not die")

    monkeypatch.setattr(substrate, "_pool", SimpleNamespace(clear=clear))
    monkeypatch.setattr(substrate, "_claim", claim)
    monkeypatch.setattr(substrate, "_build_dir", place)
    monkeypatch.setattr(substrate.store, "close", lambda: closed.append(True))
    with pytest.raises(SubstrateFailed):
        await substrate.close()
    assert (claim.given_back, place.given_back, closed) == (True, True, [True])
    await substrate.close()


async def test_a_snapshot_can_be_released_after_the_substrate_closed(tmp_path: Path) -> None:
    build = Build(Path("/k"), Path("/i"), 1, 1, "tcg")
    frozen = Frozen("live:x", Saved(build, tmp_path / "state"), Resources(), holders=1)
    frozen.saved.directory.mkdir()
    await FrozenMachines().release(frozen)
    assert not frozen.saved.directory.exists()


@pytest.mark.parametrize(("number", "expected"), [(errno.ENOSPC, CapacityError), (errno.EIO, SubstrateFailed)])
async def test_os_errors_become_errors_of_our_own(
    monkeypatch: pytest.MonkeyPatch, number: int, expected: type[DutyfreeError]
) -> None:
    substrate = MicroVMSubstrate(image="none")

    async def refused(*_: Any) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(substrate, "_from_image", refused)
    with pytest.raises(expected, match="refused"):
        await substrate.make_body(SandboxSpec(), cast("Marks", None))
