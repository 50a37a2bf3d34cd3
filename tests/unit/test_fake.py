"""The fake's own tricks: its language, its latency, and its faults. That it keeps the contract, the suite shows."""

import asyncio
import time

import pytest

from dutyfree.contract import Sandbox
from dutyfree.errors import InfraFailed, LinkFailed, SandboxGone, SubstrateFailed, Unsupported
from dutyfree.model import Action, Observation, Phase, SandboxSpec
from dutyfree.substrates.fake import FakeScript, FakeSubstrate, Fault, FaultKind, Latency, Step
from dutyfree.trace import SpanRecorder


async def sandbox_of(*faults: Fault, seed: int = 0) -> tuple[FakeSubstrate, Sandbox]:
    substrate = FakeSubstrate(script=FakeScript(faults=faults), seed=seed)
    await substrate.open()
    return substrate, await substrate.create(SandboxSpec())


async def run(line: str, stdin: bytes = b"") -> Observation:
    async with FakeSubstrate() as substrate, await substrate.create(SandboxSpec()) as box:
        return await box.run(Action(line, stdin=stdin, timeout_s=5))


@pytest.mark.parametrize(
    ("line", "stdout"),
    [
        ("echo a; echo b", "a\nb\n"),
        ("false && echo no || echo yes", "yes\n"),
        ("echo one | cat | wc -c", "4\n"),
        ("A=x; echo \"$A ${A}y\" '$A' \\$A", "x xy $A $A\n"),
        ("A=x; (A=y; cd /tmp); echo $A; pwd", "x\n/\n"),
        ("cd /tmp; echo hi > f; cat < f; echo more >> f; wc -c f", "hi\n8\n"),
        ("(exit 3); echo $?", "3\n"),
        (
            "echo lost >&2; echo a 2>/dev/null; cat /nowhere 2>&1 || true",
            "a\ncat: /nowhere: No such file or directory\n",
        ),
        ("printf '%s-%s\\n' 1 2 3", "1-2\n3-\n"),
        ("head -c 5 /dev/zero | wc -c", "5\n"),
        ("head -c 5 /dev/zero > /dev/null # comment", ""),
        ("test -d /tmp && [ ! -e /tmp/x ] && echo ok", "ok\n"),
        ("sleep 0.05 & echo first", "first\n"),
        ("cat /dev/zero | head -c 3 | wc -c", "3\n"),
    ],
)
async def test_the_language(line: str, stdout: str) -> None:
    seen = await run(line)
    assert (seen.text, seen.exit_code) == (stdout, 0)


@pytest.mark.parametrize("line", ["(echo", "echo 'a", 'echo "a', "a &&", "| b", "echo $(date)", "> ", ")"])
async def test_what_is_not_in_the_language_is_a_syntax_error(line: str) -> None:
    seen = await run(line)
    assert seen.exit_code == 2
    assert b"syntax error" in seen.stderr


async def test_a_fork_bomb_is_bounded() -> None:
    seen = await run(";".join(["sleep 1 &"] * 1100).replace("&;", "& "))
    assert b"cannot fork" in seen.stderr


async def test_latency_shows_in_the_spans() -> None:
    latency = {phase: Latency(0.03, 0.04) for phase in (Phase.CREATE, Phase.READY, Phase.DISPATCH, Phase.DESTROY)}
    recorder = SpanRecorder()
    async with FakeSubstrate(script=FakeScript(latency)) as substrate:
        box = await substrate.create(SandboxSpec(), recorder)
        seen = await box.run(Action(["true"]))
        await box.destroy()
    spans = {span.phase: span.duration_ms for span in recorder.spans}
    assert all(spans[phase] >= 30 for phase in (Phase.CREATE, Phase.READY, Phase.DESTROY))
    assert seen.execute_ms < 30 <= seen.spans[0].duration_ms + seen.spans[2].duration_ms


async def test_the_same_seed_gives_the_same_performance() -> None:
    async def performance(seed: int) -> list[bool]:
        _, box = await sandbox_of(Fault(Step.RUN, FaultKind.FAIL, probability=0.5), seed=seed)
        outcomes = await asyncio.gather(*(box.run(Action(["true"])) for _ in range(40)), return_exceptions=True)
        return [isinstance(outcome, SubstrateFailed) for outcome in outcomes]

    first = await performance(1)
    assert first == await performance(1)
    assert first != await performance(2)
    assert 5 < sum(first) < 35


@pytest.mark.parametrize(("kind", "error"), [(FaultKind.FAIL, SubstrateFailed), (FaultKind.DIE, LinkFailed)])
async def test_a_creation_that_fails_leaves_nothing(kind: FaultKind, error: type[InfraFailed]) -> None:
    substrate = FakeSubstrate(script=FakeScript(faults=(Fault(Step.CREATE, kind, nth=1),)))
    async with substrate:
        with pytest.raises(error):
            await substrate.create(SandboxSpec())
        assert not substrate.living
        await substrate.create(SandboxSpec())


async def test_a_hanging_creation_can_be_given_up() -> None:
    async with FakeSubstrate(script=FakeScript(faults=(Fault(Step.CREATE, FaultKind.HANG),))) as substrate:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(substrate.create(SandboxSpec()), 0.05)
        assert not substrate.living


async def test_the_nth_run_fails_and_the_others_do_not() -> None:
    _, box = await sandbox_of(Fault(Step.RUN, FaultKind.FAIL, nth=2))
    assert (await box.run(Action(["true"]))).ok
    with pytest.raises(SubstrateFailed):
        await box.run(Action(["true"]))
    assert (await box.run(Action(["true"]))).ok


@pytest.mark.parametrize("step", [Step.RUN, Step.STREAM])
async def test_a_death_takes_everything_with_it(step: Step) -> None:
    substrate, box = await sandbox_of(Fault(step, FaultKind.DIE))
    call = box.run(Action(["true"])) if step is Step.RUN else box.stream(Action(["true"])).__aenter__()
    with pytest.raises(LinkFailed):
        await call
    with pytest.raises(SandboxGone):
        await box.run(Action(["true"]))
    assert not substrate.living


async def test_a_hanging_run_ends_with_its_sandbox() -> None:
    _, box = await sandbox_of(Fault(Step.RUN, FaultKind.HANG))
    running = asyncio.ensure_future(box.run(Action(["true"], timeout_s=0.01)))
    await asyncio.sleep(0.05)
    assert not running.done()
    await box.destroy()
    with pytest.raises(LinkFailed):
        await running


async def test_lies_claim_what_was_not_done() -> None:
    _, dead = await sandbox_of(Fault(Step.CREATE, FaultKind.LIE))
    assert not dead.alive
    _, box = await sandbox_of(
        Fault(Step.RUN, FaultKind.LIE), Fault(Step.STREAM, FaultKind.LIE), Fault(Step.DESTROY, FaultKind.LIE)
    )
    seen = await box.run(Action("exit 3"))
    assert (seen.exit_code, seen.stdout) == (0, b"")
    async with box.stream(Action("echo x; exit 3")) as stream:
        assert [chunk async for chunk in stream] == []
        assert (await stream.wait()).ok
    await box.destroy()
    assert box.alive


async def test_what_it_lacks_it_says() -> None:
    _, box = await sandbox_of()
    with pytest.raises(Unsupported):
        await box.session()
    with pytest.raises(Unsupported):
        await box.terminal(["true"])


async def test_background_jobs_end_with_the_sandbox() -> None:
    _, box = await sandbox_of()
    await box.run(Action("sleep 30 & sleep 30 & true"))
    start_s = time.monotonic()
    await box.destroy()
    await asyncio.sleep(0)
    others = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[operator]
    await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), 1)
    assert time.monotonic() - start_s < 1
