"""Runs one trial through the public contract. Whatever a substrate does, the trial ends with a typed outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from dutyfree.contract import Sandbox
from dutyfree.errors import CallerError, DutyfreeError, SandboxGone, SubstrateFailed
from dutyfree.images.recipes.readiness import make_ready, network_of
from dutyfree.measure.design.plan import NULL, PlannedTrial
from dutyfree.measure.design.study import Study, Warmth
from dutyfree.measure.null import foretold
from dutyfree.measure.results.records import ActionRecord, Trial, TrialOutcome
from dutyfree.measure.results.writer import Unwritable
from dutyfree.measure.run import cold
from dutyfree.measure.run.arms import OpenArm
from dutyfree.measure.run.stopwatch import Stopwatch
from dutyfree.measure.workloads.workload import ScriptedAction, Workload
from dutyfree.model import Capability, Phase, SandboxSpec, Span, Stage
from dutyfree.model.recipe import LADDER
from dutyfree.trace import account, now_ns

GRACE_S: Final = 5.0
"""How long cancelled work may take to end, beyond the limit of a destruction; after that it is abandoned."""
_CREATION: Final = (Phase.QUEUE, Phase.PLACE, Phase.CREATE, Phase.READY)
"""The phases that a substrate may report during creation."""
_ACTING: Final = (Phase.SETUP, Phase.DISPATCH, Phase.EXECUTE)


MAX_ID: Final = 200
"""The longest id of a sandbox that is recorded; a longer one is cut."""


class TrialLog(Protocol):
    """Records a trial while it runs. It raises only Unwritable, which is not a failure of the trial."""

    def begin(self, planned: PlannedTrial, *, sequence: int, late_ns: int, evicted: Mapping[str, Any]) -> None:
        """The trial begins."""

    def action(self, trial: int, start_ns: int, action: ActionRecord) -> None:
        """An action returned its observation."""

    def span(self, trial: int, phase: Phase, name: str, start_ns: int, end_ns: int) -> None:
        """A span of the trial outside of actions."""

    def end(self, trial: Trial, *, sandbox: str, sync: bool = True) -> None:
        """The trial ended."""


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that determines what a trial does."""

    planned: PlannedTrial
    study: Study
    arm: OpenArm
    workload: Workload
    trajectory: tuple[ScriptedAction, ...]
    mark: str
    """The content of this trial's canaries, unique to the trial."""


class Unfaithful(Exception):
    """An action did not return the expected observation."""


class Attempt:
    """One attempt: `prepare` does what comes before the clock starts; `measure` runs and returns the trial.

    Neither raises, unless it is cancelled or the log raises. `discard` then destroys the sandbox if one is left.
    """

    def __init__(self, job: Job, log: TrialLog, seen: cold.SeenSandboxes) -> None:
        self._job = job
        self._log = log
        self._seen = seen
        self._watch = Stopwatch()
        self._sandbox: Sandbox | None = None
        self._is_over = False
        self._phase = Phase.CREATE
        self._actions: list[ActionRecord] = []
        self._first_observation_ns: int | None = None
        self._failure: tuple[TrialOutcome, Phase | None, str] | None = None
        self._done_before, self._to_do = split_stages(job.workload.stages, job.planned.condition.warmth)
        self._late_ns = 0
        is_null = job.arm.arm.substrate == NULL
        self._trajectory = foretold(job.trajectory) if is_null else job.trajectory
        self.think_s = sum(each.think_s for each in job.trajectory) if job.study.keep_think_time else 0.0
        """The think time of the agent: not part of the wall time, nor of the time limit."""
        self._timeout_s = job.study.trial_timeout_s + self.think_s

    def fail(self, outcome: TrialOutcome, phase: Phase | None, cause: str) -> None:
        """Set how the trial ends. Later failures are only appended to the cause."""
        if self._failure is None:
            self._failure = (outcome, phase, cause)
        else:
            first_outcome, first_phase, first_cause = self._failure
            self._failure = (first_outcome, first_phase, f"{first_cause}; and then: {cause}")

    async def prepare(self) -> None:
        """Create the sandbox of a warm trial, and run the stages that are done in advance. Not timed."""
        if self._job.planned.condition.warmth is not Warmth.COLD:
            await self._bounded(self._warm_up())

    async def measure(
        self, sequence: int, *, intended_ns: int | None = None, evicted: Mapping[str, Any] | None = None
    ) -> Trial:
        """Run the trial until its sandbox is destroyed, and log everything except the end.

        `intended_ns` is the planned start on the machine's clock; without it, the trial is never late.
        """

        def begin() -> None:
            self._late_ns = 0 if intended_ns is None else max(0, now_ns() - intended_ns)
            self._log.begin(self._job.planned, sequence=sequence, late_ns=self._late_ns, evicted=evicted or {})

        if self._failure is None:
            await self._bounded(self._live(begin))
        else:
            begin()
        if self._failure is None:
            await self._bounded(self._prove_newness())
        await self._destroy()
        return self._result(sequence)

    async def discard(self) -> None:
        """Destroy the sandbox if there is one; an error here belongs to no trial, and is ignored."""
        if self._sandbox is not None and not self._is_over:
            self._is_over = True
            await asyncio.wait({asyncio.ensure_future(_quietly(self._sandbox.destroy()))})

    @property
    def unenforced(self) -> list[str] | None:
        """The limits and walls that the sandbox did not have; None if no sandbox could report them."""
        try:
            return None if self._sandbox is None else [str(each.what) for each in self._sandbox.unenforced]
        except Exception:
            return None

    @property
    def sandbox_id(self) -> str:
        """The sandbox's id; empty if there was no sandbox."""
        return "" if self._sandbox is None else str(self._sandbox.id)[:MAX_ID]

    async def _warm_up(self) -> None:
        self._sandbox = await self._new_sandbox()
        self._phase = Phase.SETUP
        await make_ready(self._sandbox, self._done_before)

    async def _live(self, begin: Callable[[], None]) -> None:
        """Everything except the destruction, timed.

        `begin` is called just before the clock starts, so that no time lies between a trial's lateness and its clock.
        """
        begin()
        self._watch.go()
        try:
            if self._sandbox is None:
                with self._watch.phase(Phase.CREATE, reported=_CREATION):
                    self._sandbox = await self._new_sandbox()
            if self._to_do:
                self._phase = Phase.SETUP
                with self._watch.phase(Phase.SETUP):
                    await make_ready(self._sandbox, self._to_do, after=self._done_before)
            self._phase = Phase.DISPATCH
            await self._act(self._sandbox)
        finally:
            self._watch.stop()

    async def _new_sandbox(self) -> Sandbox:
        arm, network = self._job.arm, network_of(self._job.workload.stages)
        spec = SandboxSpec(resources=self._job.study.resources, network=network, image=arm.image)
        return await arm.substrate.create(spec, self._watch.on_span)

    async def _act(self, sandbox: Sandbox) -> None:
        run, counted_ns = sandbox.run, self._watch.now_ns
        number, keep_think_time = self._job.planned.number, self._job.study.keep_think_time
        spans, actions, log_action = self._watch.spans, self._actions, self._log.action
        for scripted in self._trajectory:
            if keep_think_time and scripted.think_s > 0:
                self._watch.stop()
                await asyncio.sleep(scripted.think_s)
                self._watch.go()
            start_ns = counted_ns()
            try:
                seen = await run(scripted.action)
                end_ns = counted_ns()
                if self._is_over:  # cancelled earlier, and the substrate continued: too late to be recorded
                    return
                execute_ns = seen.timing.execute_ns
                tax_ns = end_ns - start_ns - execute_ns
                if type(execute_ns) is not int or execute_ns < 0 or tax_ns < 0:
                    raise SubstrateFailed(f"{execute_ns} ns of execution in {end_ns - start_ns} ns is impossible")
            except BaseException as error:
                spans.append(Span(Phase.DISPATCH, start_ns, counted_ns()))
                error.add_note(f"action {scripted.name!r}")
                raise
            # The clocks of guest and host cannot be compared: the rest is split evenly (`model.Timing`).
            begun_ns = start_ns + tax_ns // 2
            ended_ns = begun_ns + execute_ns
            record = ActionRecord(scripted.name, scripted.kind, begun_ns - start_ns, execute_ns, end_ns - ended_ns)
            actions.append(record)
            spans.append(Span(Phase.DISPATCH, start_ns, begun_ns))
            spans.append(Span(Phase.EXECUTE, begun_ns, ended_ns))
            spans.append(Span(Phase.OBSERVE, ended_ns, end_ns))
            log_action(number, start_ns, record)
            if self._first_observation_ns is None:
                self._first_observation_ns = end_ns
            self._watch.stop()  # an agent would not compare the output with an expected one
            if wrong := scripted.expect.mismatch(seen):
                self._phase = Phase.EXECUTE
                raise Unfaithful(f"{scripted.name}: {wrong}")
            self._watch.go()

    async def _prove_newness(self) -> None:
        """Check that the sandbox holds nothing of earlier trials, and leave a canary for later trials to find."""
        assert self._sandbox is not None
        arm = self._job.arm
        problem = self._seen.problem(arm.arm.name, str(self._sandbox.id))
        if not problem and arm.arm.substrate != NULL:
            is_private = Capability.PRIVATE_FILES in arm.substrate.capabilities
            seen = await self._sandbox.run(cold.canary_action(self._job.mark, private=is_private))
            problem = cold.canary_problem(seen, self._job.mark)
        if problem:
            self.fail(TrialOutcome.NOT_COLD, None, problem)

    async def _destroy(self) -> None:
        sandbox, self._is_over = self._sandbox, True
        if sandbox is None:
            return
        self._watch.go()
        try:
            with self._watch.phase(Phase.DESTROY, reported=(Phase.DESTROY,)):
                await sandbox.destroy()  # ends in bounded time: it is guarded
            if sandbox.inner.alive:
                raise SubstrateFailed(f"sandbox {sandbox.id} is alive after its destruction")
        except Exception as error:
            self.fail(TrialOutcome.INFRA_FAILED, Phase.DESTROY, described(error))
        finally:
            self._watch.stop()

    async def _bounded(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, at most as long as a trial may take. An error fails the trial, unless the log raised it.

        The work is a separate task that is waited for with a limit: one that ignores its cancellation is abandoned.
        """
        task = asyncio.get_running_loop().create_task(work)
        grace_s = self._job.arm.destroy_timeout_s + GRACE_S
        try:
            done, _ = await asyncio.wait({task}, timeout=self._timeout_s)
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task}, timeout=grace_s)
            raise
        if not done:
            phase = self._phase
            task.cancel()
            await asyncio.wait({task}, timeout=grace_s)
            self.fail(TrialOutcome.TIMED_OUT, phase, f"it had not ended after {self._timeout_s:g} s")
        if not task.done():
            task.add_done_callback(_retrieve)
        elif task.cancelled():
            if done:
                self.fail(TrialOutcome.INFRA_FAILED, self._phase, "CancelledError: the substrate cancelled the call")
        elif isinstance(error := task.exception(), Unwritable):
            raise error
        elif error is not None and done:
            self.fail(self._outcome_of(error), self._phase, described(error))

    def _outcome_of(self, error: BaseException) -> TrialOutcome:
        """The party at fault: a request of the workload that cannot be met is not a failure of the infrastructure."""
        is_callers = isinstance(error, CallerError) and not isinstance(error, SandboxGone)
        if isinstance(error, Unfaithful) or (is_callers and self._phase in _ACTING):
            return TrialOutcome.UNFAITHFUL
        return TrialOutcome.INFRA_FAILED

    def _result(self, sequence: int) -> Trial:
        wall_ns = self._watch.now_ns()
        outcome, failed_phase, cause = self._failure or (TrialOutcome.COMPLETED, None, "")
        planned, steps = self._job.planned, dict[str, int]()
        for span in self._watch.spans:
            if span.phase in (Phase.DISPATCH, Phase.EXECUTE, Phase.OBSERVE):
                continue
            self._log.span(planned.number, span.phase, span.name, span.start_ns, span.end_ns)
            if span.name:
                step = f"{span.phase}/{span.name}"
                steps[step] = steps.get(step, 0) + span.end_ns - span.start_ns
        return Trial(
            number=planned.number,
            sequence=sequence,
            block=planned.block,
            condition=planned.condition,
            outcome=outcome,
            wall_ns=wall_ns,
            first_observation_ns=self._first_observation_ns,
            by_phase=account(self._watch.spans, 0, wall_ns).by_phase,
            steps=steps,
            actions=tuple(self._actions),
            late_ns=self._late_ns,
            failed_phase=failed_phase,
            cause=cause,
        )


def split_stages(stages: tuple[Stage, ...], warmth: Warmth) -> tuple[tuple[Stage, ...], tuple[Stage, ...]]:
    """The stages that are done before a trial's clock starts, and those that are part of the trial.

    Warm at a stage means that all stages up to it are done; at `dependencies`, the last of the ladder, all stages.
    """
    if warmth in (Warmth.COLD, Warmth.BASE):
        return (), stages
    if warmth is Warmth.DEPENDENCIES:
        return stages, ()
    known = LADDER[: LADDER.index(warmth) + 1]
    count = max((index + 1 for index, stage in enumerate(stages) if stage.name in known), default=0)
    return stages[:count], stages[count:]


def described(error: BaseException) -> str:
    """Any error in one line: its class, its message and its notes."""
    try:
        message = error.message if isinstance(error, DutyfreeError) else str(error)
    except Exception:
        message = "(an error without a readable message)"
    notes = [note for note in getattr(error, "__notes__", []) if isinstance(note, str)]
    kind = "" if isinstance(error, Unfaithful) else f"{type(error).__name__}: "
    return " ".join("; ".join([f"{kind}{message}", *notes]).split())[:1000]


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:  # no caller is left to handle it, and closing the substrate tries again
        return


def _retrieve(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()
