"""Runs a study: opens its arms once, runs its blocks one after the other, and journals every trial."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import secrets
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dutyfree.contract import Substrate
from dutyfree.errors import DutyfreeError, InvalidRequest
from dutyfree.measure.design.plan import PlannedTrial, plan, remaining, size
from dutyfree.measure.design.study import Arm, Condition, Warmth
from dutyfree.measure.results.layout import MAX_CAUSE
from dutyfree.measure.results.records import Trial, TrialOutcome
from dutyfree.measure.results.writer import ResultsWriter, Unwritable
from dutyfree.measure.run.arms import OPEN_TIMEOUT_S, OpenArm, load_substrate, open_arm
from dutyfree.measure.run.cold import PageCache, SeenSandboxes
from dutyfree.measure.run.installation import Installation, open_installation
from dutyfree.measure.run.pace import Pace
from dutyfree.measure.run.reference import bare_spawn_ns
from dutyfree.measure.run.trial import GRACE_S, Attempt, Job, TrialLog, described
from dutyfree.measure.run.wave import Arrival, ServiceTimes, Unrecorded, failed_trial, run_wave
from dutyfree.measure.workloads.drawing import draw
from dutyfree.measure.workloads.workload import Workload
from dutyfree.substrates.guarded.substrate import DESTROY_TIMEOUT_S

TIME_LIMIT: Final = "the time limit was reached"
INTERRUPTED: Final = "it was interrupted"
CALIBRATION_TRIALS: Final = 3
MAX_RATE_PER_S: Final = 200.0
"""The highest arrival rate that the instrument can keep up with; a higher rate is reduced to this."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a study."""

    done: int
    planned: int
    failed: int
    condition: Condition | None
    """The condition that is being measured."""
    left_s: float | None
    """The estimated remaining time; None while no trial has ended."""


class StudyRunner:
    """Runs the remaining trials of a study. `stop` may be called at any time; running trials are then abandoned."""

    def __init__(
        self,
        writer: ResultsWriter,
        workloads: Mapping[str, Workload],
        *,
        on_progress: Callable[[Progress], None] = lambda _: None,
        load: Callable[[Arm], Substrate] = load_substrate,
        fingerprints: Mapping[str, str] | None = None,
        open_timeout_s: float = OPEN_TIMEOUT_S,
        destroy_timeout_s: float = DESTROY_TIMEOUT_S,
    ) -> None:
        self._study = writer.study
        self._writer = writer
        self._workloads = workloads
        self._on_progress = on_progress
        self._load = load
        self._fingerprints = fingerprints or {}
        self._open_timeout_s = open_timeout_s
        self._destroy_timeout_s = destroy_timeout_s
        self._arms: dict[str, OpenArm] = {}
        self._workers: dict[str, Installation] = {}
        self._unavailable: dict[str, str] = {}
        self._seen = SeenSandboxes()
        self._service = ServiceTimes(writer.earlier)
        self._page_cache: PageCache | None = None
        self._stopped = ""
        self._under_way: asyncio.Task[None] | None = None
        blocks = plan(self._study)
        self._planned = size(blocks)
        self._left = remaining(blocks, writer.done)
        self._pace = Pace(trial.condition for block in self._left for trial in block.trials)
        self._done = len(writer.done)
        self._failed = sum(not trial.completed for trial in writer.earlier)
        self._end_s = float("inf")
        self._token = secrets.token_hex(6)
        self._marks = 0
        self._facts: dict[str, dict[str, Any]] = {}

    @property
    def unavailable(self) -> Mapping[str, str]:
        """Arms that could not be opened, and why."""
        return self._unavailable

    def stop(self, reason: str = INTERRUPTED) -> None:
        """Abandon the running trials, and end."""
        self._stopped = self._stopped or reason
        if self._under_way is not None:
            self._under_way.cancel()

    async def run(self) -> str:
        """Run the study to its end, its time limit, or `stop`. Returns why it ended early; empty if it did not.

        An arm that cannot be opened is noted in the results, and the others are measured. Raises InvalidRequest, before
        anything is measured, for an arm with wrong options and for an eviction that is not possible here; Unwritable if
        the results cannot be written any more.
        """
        if self._study.time_limit_s is not None:
            self._end_s = time.monotonic() + self._study.time_limit_s
        try:
            await self._until_stopped(self._open())
            # Objects that exist by now will stay: the garbage collector need not visit them during trials.
            gc.collect()
            gc.freeze()
            await self._until_stopped(self._blocks())
            self._writer.stop(self._stopped)
        finally:
            gc.unfreeze()
            await self._close()
        return self._stopped

    async def _until_stopped(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work until it ends or the study is stopped. Cancelling the caller ends it, too."""
        if self._stopped:
            work.close()
            return
        self._under_way = asyncio.get_running_loop().create_task(work)
        try:
            await asyncio.shield(self._under_way)
        except asyncio.CancelledError:
            if not self._under_way.done():
                self._under_way.cancel()
                await asyncio.wait({self._under_way})
            if not self._stopped:
                raise
        finally:
            self._under_way = None

    async def _open(self) -> None:
        if self._study.evict:
            self._page_cache = await asyncio.to_thread(PageCache, self._writer.path)
        wanted = {trial.condition.arm for block in self._left for trial in block.trials}
        for arm in self._study.arms:
            if arm.name not in wanted:
                continue
            try:
                self._learn(arm.name, await self._open_arm(arm))
            except InvalidRequest:
                raise
            except DutyfreeError as error:
                self._unavailable[arm.name] = error.message[:MAX_CAUSE]
                self._writer.arm(arm.name, {"unavailable": error.message[:MAX_CAUSE], "hint": error.hint})

    async def _open_arm(self, arm: Arm) -> Mapping[str, Any]:
        """Open the arm, here or in its own installation. Returns its facts."""
        if arm.python is not None:
            worker, facts = await open_installation(self._study, arm, self._fingerprints, self._open_timeout_s)
            self._workers[arm.name] = worker
            return facts
        opened = await open_arm(
            arm, timeout_s=self._open_timeout_s, destroy_timeout_s=self._destroy_timeout_s, load=self._load
        )
        self._arms[arm.name] = opened
        return opened.facts

    async def _close(self) -> None:
        """Close every arm. Never raises, because it also runs after an error."""
        for name, arm in self._arms.items():
            problem = await arm.close()
            if problem:
                with contextlib.suppress(Unwritable):
                    self._learn(name, {"not closed": problem})
        for worker in self._workers.values():
            await worker.close()
        if self._page_cache is not None:
            self._page_cache.close()

    async def _blocks(self) -> None:
        for block in self._left:
            if time.monotonic() >= self._end_s:
                self._stopped = TIME_LIMIT
                return
            # Not in a thread: no trial is running that this could delay, and a thread would go on after a stop.
            if spawn_ns := bare_spawn_ns():
                self._writer.reference(block.number, spawn_ns)
            for turn in block.by_arm():
                condition = turn[0].condition
                if condition.arm in self._workers:
                    self._tell(condition)
                    await self._elsewhere(turn[0])
                elif condition.arm in self._arms:
                    self._tell(condition)
                    await (self._alone(turn[0]) if condition.concurrency == 1 else self._together(turn))
                else:
                    for planned in turn:
                        self._pace.drop(planned.condition)

    async def _alone(self, planned: PlannedTrial) -> None:
        start_s = time.monotonic()
        attempt = self._attempt(planned, self._writer)
        evicted = await self._evict([attempt], planned.condition)
        try:
            await attempt.prepare()
            trial = await attempt.measure(self._writer.next_sequence(), evicted=evicted)
        finally:
            await attempt.discard()
        self._service.note(trial)
        self._record(trial, attempt, time.monotonic() - start_s, sync=True)

    async def _elsewhere(self, planned: PlannedTrial) -> None:
        """Let the arm's own installation run the trial. A worker that fails is not asked again."""
        start_s, sequence, name = time.monotonic(), self._writer.next_sequence(), planned.condition.arm
        trajectory = draw(self._workloads[planned.condition.workload], planned.condition.length, planned.seed)
        think_s = sum(each.think_s for each in trajectory) if self._study.keep_think_time else 0.0
        # Preparation, actions and the proof of newness have the trial's time limit each; then the sandbox is destroyed.
        timeout_s = 3 * (self._study.trial_timeout_s + think_s + GRACE_S) + 4 * DESTROY_TIMEOUT_S
        self._writer.begin(planned, sequence=sequence, late_ns=0, evicted={})
        try:
            done = await self._workers[name].run(
                planned, sequence, self._mark(), [each.name for each in trajectory], timeout_s
            )
        except DutyfreeError as error:
            await self._workers.pop(name).close()
            self._learn(name, {"unavailable": error.message[:MAX_CAUSE]})
            self._unavailable[name] = error.message[:MAX_CAUSE]
            self._note(
                failed_trial(planned, sequence, described(error)), "", None, time.monotonic() - start_s, sync=True
            )
            return
        self._writer.records(done.records)
        self._note(done.trial, done.sandbox, done.unenforced, time.monotonic() - start_s, sync=True)

    async def _together(self, turn: tuple[PlannedTrial, ...]) -> None:
        start_s = time.monotonic()
        first, arm = turn[0], turn[0].condition.arm
        attempts = [self._attempt(planned, self._writer) for planned in turn]
        found = self._service.mean_ns(first.condition)
        basis = "" if found is None else f"{found[1]} trials at concurrency 1"
        if found is None:
            found, basis = await self._calibrated(first)
        service_ns, _ = found
        for attempt in attempts if not service_ns else ():
            attempt.fail(TrialOutcome.INFRA_FAILED, None, f"no arrival rate: {basis}")
        if think_s := sum(attempt.think_s for attempt in attempts) / len(attempts):
            # A trajectory also occupies its sandbox while the agent thinks.
            service_ns, basis = service_ns + round(think_s * 1e9), f"{basis}, and {think_s:g} s of thinking"
        rate_per_s = min(MAX_RATE_PER_S, first.condition.concurrency * 1e9 / max(service_ns, 1))
        self._writer.wave(first.block, arm, rate_per_s=rate_per_s, service_ns=service_ns, basis=basis)
        evicted = await self._evict(attempts, first.condition)

        def on_trial(trial: Trial, attempt: Attempt) -> None:
            # No sync here: waiting for the disk would delay all other running trials.
            self._record(trial, attempt, (time.monotonic() - start_s) / len(turn), sync=False)

        wave = [Arrival(planned, attempt) for planned, attempt in zip(turn, attempts, strict=True)]
        await run_wave(wave, rate_per_s, self._writer, self._writer.next_sequence, on_trial, evicted)
        self._writer.sync()

    async def _calibrated(self, planned: PlannedTrial) -> tuple[tuple[int, int], str]:
        """The mean service time of a few trials that are not part of the results, and the basis of it as text."""
        walls_ns: list[int] = []
        cause = ""
        for _ in range(CALIBRATION_TRIALS):
            attempt = self._attempt(planned, Unrecorded())
            try:
                await attempt.prepare()
                trial = await attempt.measure(0)
            finally:
                await attempt.discard()
            if trial.completed:
                walls_ns.append(trial.wall_ns)
            else:
                cause = trial.cause
        if not walls_ns:
            return (0, 0), f"no calibration trial completed: {cause}"
        return (sum(walls_ns) // len(walls_ns), len(walls_ns)), f"{len(walls_ns)} calibration trials"

    def _attempt(self, planned: PlannedTrial, log: TrialLog) -> Attempt:
        condition = planned.condition
        workload = self._workloads[condition.workload]
        trajectory = draw(workload, condition.length, planned.seed)
        job = Job(planned, self._study, self._arms[condition.arm], workload, trajectory, self._mark())
        return Attempt(job, log, self._seen)

    def _mark(self) -> str:
        """The content of the next trial's canaries."""
        self._marks += 1
        return f"{self._token}-{self._marks}"

    async def _evict(self, attempts: Sequence[Attempt], condition: Condition) -> Mapping[str, Any]:
        if self._page_cache is None or condition.warmth is not Warmth.COLD:
            return {}
        try:
            return await asyncio.to_thread(self._page_cache.evict)
        except InvalidRequest as error:
            for attempt in attempts:
                attempt.fail(TrialOutcome.NOT_COLD, None, error.message)
            return {}

    def _record(self, trial: Trial, attempt: Attempt, took_s: float, *, sync: bool) -> None:
        self._note(trial, attempt.sandbox_id, attempt.unenforced, took_s, sync=sync)

    def _note(self, trial: Trial, sandbox: str, unenforced: list[str] | None, took_s: float, *, sync: bool) -> None:
        self._writer.end(trial, sandbox=sandbox, sync=sync)
        self._done += 1
        self._failed += not trial.completed
        self._pace.note(trial.condition, took_s)
        name = trial.condition.arm
        if "unenforced" not in self._facts[name] and unenforced is not None:  # the first sandbox shows it
            self._learn(name, {"unenforced": unenforced})
        self._tell(trial.condition)

    def _learn(self, name: str, facts: Mapping[str, Any]) -> None:
        self._facts[name] = {**self._facts.get(name, {}), **facts}
        self._writer.arm(name, self._facts[name])

    def _tell(self, condition: Condition | None) -> None:
        left_s = self._pace.left_s()
        if left_s is not None:
            left_s = min(left_s, max(0.0, self._end_s - time.monotonic()))
        self._on_progress(Progress(self._done, self._planned, self._failed, condition, left_s))
