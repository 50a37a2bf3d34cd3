"""The judge judged on reset, snapshot and fork: cells that only say that they did it are found out."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from dutyfree.contract import Sandbox, SpanListener
from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import Action, Capability, Image, SandboxSpec
from dutyfree.substrates.cell import CellSubstrate
from dutyfree.testing import Outcome, all_checks, run_conformance

Change = Callable[[Sandbox, CellSubstrate], None]


class Liar(CellSubstrate):
    """Cells that are changed after they were made."""

    def __init__(self, store: Path, change: Change) -> None:
        super().__init__(store=store)
        self._change = change

    async def create(self, spec: SandboxSpec, on_span: SpanListener | None = None) -> Sandbox:
        sandbox = await super().create(spec, on_span)
        self._change(sandbox, self)
        return sandbox


def replace_method(name: str, method: Callable[..., Awaitable[object]]) -> Change:
    return lambda sandbox, _substrate: setattr(sandbox, name, method)


async def nothing() -> None:
    return None


def reset_files_alone(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
    async def reset() -> None:
        await sandbox.run(Action("rm -rf /tmp/* /tmp/.[a-z]* /dev/shm/* /srv/*"))

    sandbox.reset = reset  # type: ignore[method-assign]


def fork_afresh(sandbox: Sandbox, substrate: CellSubstrate) -> None:
    async def fork(count: int) -> list[Sandbox]:
        return [await substrate.create(SandboxSpec()) for _ in range(count)]

    sandbox.fork = fork  # type: ignore[method-assign]


def fork_into_one(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
    async def fork(count: int) -> list[Sandbox]:
        return [sandbox] * count

    sandbox.fork = fork  # type: ignore[method-assign]


def snapshot_by_reset(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
    real = sandbox.snapshot

    async def snapshot() -> object:
        taken = await real()
        await sandbox.reset()
        return taken

    sandbox.snapshot = snapshot  # type: ignore[method-assign, assignment]


def snapshot_of_the_start(sandbox: Sandbox, _substrate: CellSubstrate) -> None:
    real = sandbox.snapshot

    async def snapshot() -> object:
        taken = await real()
        taken._image = Image()  # type: ignore[attr-defined]
        return taken

    sandbox.snapshot = snapshot  # type: ignore[method-assign, assignment]


CASES: list[tuple[Change, set[str]]] = [
    (
        replace_method("reset", nothing),
        {"reset.files", "reset.processes", "reset.under-way", "reset.sessions", "reset.names", "reset.disk",
         "reset.span", "reset.gone", "reset.cancelled", "reset.meanwhile", "reset.at-once", "fork.reset",
         "snapshot.reset"},
    ),
    (reset_files_alone, {"reset.files", "reset.processes", "reset.names", "reset.under-way", "reset.sessions"}),
    (fork_afresh, {"fork.moment", "fork.independent", "fork.lives-apart", "fork.again", "fork.counts", "fork.span"}),
    (fork_into_one, {"fork.moment", "fork.independent", "fork.lives-apart", "fork.busy"}),
    (snapshot_by_reset, {"snapshot.goes-on", "snapshot.session", "snapshot.between-actions", "snapshot.dev-shm"}),
    (snapshot_of_the_start, {"snapshot.files", "snapshot.apart", "snapshot.outlives", "snapshot.chain"}),
]  # fmt: skip


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("change", "broken"), CASES, ids=lambda value: getattr(value, "__name__", ""))
async def test_a_cell_that_lies_is_found_out(change: Change, broken: set[str], tmp_path: Path) -> None:
    checks = [one for one in all_checks() if one.id in broken]
    assert len(checks) == len(broken)
    try:
        report = await run_conformance(Liar(tmp_path / "store", change), checks=checks)
    except SubstrateUnavailable as error:
        pytest.skip(str(error))
    assert {one.id for one in report.results if one.outcome is not Outcome.FAILED} == set()


async def test_a_substrate_that_claims_less_than_it_does_is_found_out(tmp_path: Path) -> None:
    class Modest(CellSubstrate):
        @property
        def capabilities(self) -> frozenset[Capability]:
            return super().capabilities - {Capability.FORK}

    checks = [one for one in all_checks() if one.id.startswith("capabilities.")]
    try:
        report = await run_conformance(Modest(store=tmp_path / "store"), checks=checks)
    except SubstrateUnavailable as error:
        pytest.skip(str(error))
    outcomes = {one.id: one.outcome for one in report.results}
    assert outcomes == {"capabilities.unclaimed": Outcome.FAILED, "capabilities.unclaimed-images": Outcome.NOT_RUN}
