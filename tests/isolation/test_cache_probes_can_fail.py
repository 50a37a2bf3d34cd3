"""The probes of caches on cells whose protection was taken away: each of these finds that out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dutyfree.errors import SubstrateUnavailable
from dutyfree.images import caches
from dutyfree.images.store import CacheVersion
from dutyfree.images.store.caches import Caches
from dutyfree.model import Action, Observation
from dutyfree.substrates import load
from dutyfree.substrates.cell.sandbox import CellSandbox
from dutyfree.testing.isolation import PROBES, CannotCompile, Outcome, Prober, compile_program

Weaken = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return compile_program(tmp_path_factory.mktemp("probe"))
    except CannotCompile as error:
        pytest.skip(f"isolation probes: no probe program: {error}")


def take_everything(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(caches._Sieve, "__call__", lambda _self, _info: False)
    patch.setattr(caches, "_check_size", lambda _cache, _bytes: None)


def follow_links(patch: pytest.MonkeyPatch) -> None:
    def copy(source: Path, target: Path, **_options: Any) -> None:
        target.mkdir()
        for each in source.iterdir():
            if each.is_file():
                shutil.copy(each, target / each.name)

    patch.setattr(caches, "copy_tree", copy)


def forget_owners(patch: pytest.MonkeyPatch) -> None:
    def get(self: Caches, _owner: str, name: str) -> CacheVersion | None:
        return next((each for each in self.all()[0] if each.name == name), None)

    patch.setattr(Caches, "get", get)


def save_at_once(patch: pytest.MonkeyPatch) -> None:
    run = CellSandbox.run

    async def run_and_save(self: CellSandbox, action: Action) -> Observation:
        seen = await run(self, action)
        if self._spec.caches:
            await self.save_cache(self._spec.caches[0].name)
        return seen

    patch.setattr(CellSandbox, "run", run_and_save)


@pytest.mark.parametrize(
    ("probe", "weaken"),
    [
        ("caches.special", take_everything),
        ("caches.floods", take_everything),
        ("caches.links", follow_links),
        ("caches.owners", forget_owners),
        ("caches.unsaved", save_at_once),
    ],
)
async def test_a_missing_protection_is_found(
    probe: str, weaken: Weaken, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weaken(monkeypatch)
    (wanted,) = (each for each in PROBES if each.id == probe)
    try:
        async with Prober(load("cell", store=tmp_path / "store"), program) as prober:
            result = await prober.run(wanted)
    except SubstrateUnavailable as error:
        pytest.skip(f"isolation probes on cell: {error}")
    assert result.outcome is Outcome.FAILED, result.reason
    assert "Error" not in result.reason, "it failed for another reason"
