"""T0, T1 and T2 for real: made ready through the contract, and every action gives what it promises."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dutyfree.contract import Sandbox, Substrate
from dutyfree.errors import BuildFailed, InvalidRequest, SubstrateUnavailable
from dutyfree.images.recipes.readiness import make_ready
from dutyfree.measure.design.study import DEFAULT_RESOURCES
from dutyfree.measure.workloads import catalogue
from dutyfree.measure.workloads.drawing import draw
from dutyfree.measure.workloads.workload import Workload
from dutyfree.model import Action, FileInput, SandboxSpec, Stage
from dutyfree.substrates import registry
from support.workload_materials import prepared

SPEC = SandboxSpec(resources=DEFAULT_RESOURCES)
LENGTH = 36
"""Long enough for every action of a menu, some of them several times."""


@pytest.fixture(params=["process", "cell"])
async def substrate(request: pytest.FixtureRequest) -> AsyncIterator[Substrate]:
    try:
        async with registry.load(request.param) as opened:
            yield opened
    except SubstrateUnavailable as error:
        pytest.skip(f"workloads on {request.param}: {error.message}")


async def mismatches(sandbox: Sandbox, workload: Workload, length: int, seed: int) -> list[str]:
    """What was wrong with each action that did not give what it promises."""
    found = []
    for each in draw(workload, length, seed):
        seen = await sandbox.run(each.action)
        if wrong := each.expect.mismatch(seen):
            found.append(f"{each.name}: {wrong}: {seen.text[-300:]} {seen.stderr[-300:]!r}")
    return found


@pytest.mark.parametrize("name", catalogue.BUILT_IN)
async def test_every_action_gives_what_it_promises(substrate: Substrate, name: str) -> None:
    workload = prepared(name)
    wanted = {each.name for each in workload.menu}
    seed = next(seed for seed in range(10_000) if wanted <= {each.name for each in draw(workload, LENGTH, seed)})
    async with await substrate.create(SPEC) as sandbox:
        await make_ready(sandbox, workload.stages)
        assert await mismatches(sandbox, workload, LENGTH, seed) == []


async def test_two_at_once_do_not_meet(substrate: Substrate) -> None:
    workload = prepared("T2")

    async def trial() -> list[str]:
        async with await substrate.create(SPEC) as sandbox:
            await make_ready(sandbox, workload.stages)
            return await mismatches(sandbox, workload, len(workload.opening), seed=1)

    assert await asyncio.gather(trial(), trial()) == [[], []]


async def test_what_fails_is_named(substrate: Substrate, tmp_path: Path) -> None:
    async with await substrate.create(SPEC) as sandbox:
        stages = [
            Stage("image", run=("true",), env={"WORD": "heard"}),
            Stage("repository", run=("echo once $WORD", "echo twice $WORD; exit 3")),
        ]
        with pytest.raises(BuildFailed, match=r"stage 'repository': line 2 .* exit code 3") as caught:
            await make_ready(sandbox, stages)
        assert caught.value.log == "once heard\ntwice heard\n"
        missing = Stage("image", files=(FileInput(str(tmp_path / "missing"), "/~/a"),))
        with pytest.raises(InvalidRequest, match=r"'image': there is no .*missing"):
            await make_ready(sandbox, [missing])
        with pytest.raises(BuildFailed, match="stage 'image'"):
            await make_ready(sandbox, [Stage("image", cwd="/proc/nowhere")])


async def test_inputs_and_directories_at_home(substrate: Substrate, tmp_path: Path) -> None:
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "a").write_text("content")
    stage = Stage("image", files=(FileInput(str(tmp_path / "tree"), "/~/deep/tree"),), cwd="/~/deep", run=("ls > out",))
    async with await substrate.create(SPEC) as sandbox:
        await make_ready(sandbox, [stage])
        seen = await sandbox.run(Action("cat ~/deep/tree/below/a ~/deep/out"))
        assert seen.text == "contentout\ntree\n"


async def test_what_stages_of_before_have_set_holds_for_the_rest(substrate: Substrate) -> None:
    before = [Stage("image", env={"WORD": "heard"}, cwd="/~/deep")]
    async with await substrate.create(SPEC) as sandbox:
        await make_ready(sandbox, before)
        await make_ready(sandbox, [Stage("repository", run=("echo $WORD > out",))], after=before)
        assert (await sandbox.run(Action("cat ~/deep/out"))).text == "heard\n"


async def test_t0_runs_on_processes() -> None:
    async with registry.load("process") as process, await process.create(SPEC) as sandbox:
        assert await mismatches(sandbox, catalogue.find("T0"), 60, seed=1) == []
