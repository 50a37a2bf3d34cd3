"""Projections: the paper's to the hour, and our own with their uncertainty."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.cli import project as command
from dutyfree.errors import InvalidRequest
from dutyfree.measure import paper
from dutyfree.measure.design.study import Arm, Condition, Grid, Study, Warmth
from dutyfree.measure.project import MeasuredLatencies, Scale, StatedLatencies, project, worker_hours
from dutyfree.measure.project.reproduction import reproduce
from dutyfree.measure.results.records import Results, Trial, TrialOutcome
from dutyfree.measure.stats.caveats import Code
from dutyfree.measure.stats.estimate import Estimate
from dutyfree.model import Phase
from support.synthetic_results import NATURES, Nature, synthetic_results, write_results

ARMS = tuple(Arm(arm, arm) for arm in ("cell", "docker", "docker-exec", "gvisor"))
LONG = Study("long", ARMS, (Grid(30, ("T2",), lengths=(10, 50, 150)), Grid(30, ("T0",))), seed=4)


@pytest.fixture(scope="module")
def results() -> Results:
    return synthetic_results(LONG)


@pytest.fixture(scope="module")
def latencies(results: Results) -> MeasuredLatencies:
    return MeasuredLatencies(results)


def run_command(*arguments: str) -> int:
    """The command as the command line calls it."""
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    options = parser.parse_args(["project", *arguments])
    return int(options.execute(options))


def test_the_tables_of_the_paper_are_reproduced_to_the_hour() -> None:
    found = reproduce()
    assert [round(row.hours) for row in found.table_1] == [278, 417, 4_167]
    assert [round(row.hours) for row in found.table_2] == [11_811, 6_495, 5_316]
    for row in (*found.table_1, *found.table_2):
        assert round(row.hours) == row.published_hours


def test_what_the_paper_prints_is_rounded_and_that_is_said() -> None:
    """42.5 s is not 11,811 h; but a latency that rounds to 42.5 s is, and what rounding leaves open holds it."""
    found = reproduce()
    assert [round(row.hours_as_printed) for row in found.table_2] == [11_806, 6_500, 5_306]
    for row in found.table_2:
        assert round(row.consistent_s, 1) == row.latency_s
        assert row.least_hours <= row.published_hours <= row.most_hours
    assert paper.SLOWEST.consistent_s - paper.FASTEST.consistent_s == pytest.approx(paper.DIFFERENCE.consistent_s)


def test_the_paper_as_stated_latencies_gives_its_table_and_its_spread() -> None:
    stated = StatedLatencies({row.words: row.consistent_s for row in (paper.SLOWEST, paper.FASTEST)}, paper.LONG_STEPS)
    found = project(stated, Scale(paper.TRAJECTORIES, paper.LONG_STEPS))
    assert [round(arm.worker_hours.value) for arm in found.arms] == [6_495, 11_811]
    assert found.spread is not None
    assert round(found.spread.worker_hours.value) == 5_316
    assert found.spread_ratio is not None
    assert round(found.spread_ratio, 1) == paper.WORKER_HOURS_SPREAD
    assert [point.trajectories for point in found.grid] == [100_000, 1_000_000, 10_000_000]


def test_rounded_latencies_carry_what_rounding_leaves_open() -> None:
    stated = StatedLatencies({"slow": paper.SLOWEST_S, "fast": paper.FASTEST_S}, 150, rounded_to_s=paper.ROUNDED_TO_S)
    found = project(stated, Scale())
    for arm, published in zip(found.arms, (paper.FASTEST, paper.SLOWEST), strict=True):
        assert arm.worker_hours.low is not None
        assert arm.worker_hours.high is not None
        assert arm.worker_hours.low <= published.worker_hours <= arm.worker_hours.high
        assert {each.code for each in arm.caveats} == {Code.ROUNDED}


def test_stated_latencies_say_nothing_of_other_lengths() -> None:
    with pytest.raises(InvalidRequest, match="say nothing of 50"):
        StatedLatencies({"a": 1.0}, 150).at("a", 50)


@pytest.mark.parametrize("latency_s", [0.0, -1.0, float("nan"), float("inf")])
def test_latencies_are_positive(latency_s: float) -> None:
    with pytest.raises(InvalidRequest, match="must be positive"):
        StatedLatencies({"a": latency_s}, 150)


@given(st.floats(1e-3, 1e5), st.integers(1, 10**9))
def test_everything_is_in_proportion(latency_s: float, trajectories: int) -> None:
    scale = Scale(trajectories, 150, workers=10, price_per_worker_hour=2.0, gpu_price_per_hour=3.0, gpus_waiting=4)
    (found,) = project(StatedLatencies({"a": latency_s}, 150), scale).arms
    hours = worker_hours(latency_s, trajectories)
    for estimate, truth in (
        (found.worker_hours, hours),
        (found.elapsed_hours, hours / 10),
        (found.worker_cost, hours * 2),
        (found.gpu_idle_hours, hours / 10 * 4),
        (found.gpu_idle_cost, hours / 10 * 4 * 3),
    ):
        assert estimate is not None
        assert estimate.value == pytest.approx(truth)


def test_a_length_that_was_measured_is_projected_from_its_own_mean(
    results: Results, latencies: MeasuredLatencies
) -> None:
    walls = [
        trial.wall_ns / 1e9
        for trial in results.trials
        if trial.completed and trial.condition.arm == "cell" and trial.condition.length == 150
    ]
    assert latencies.workload == "T2"
    found = latencies.at("cell", 150)
    assert found.value == pytest.approx(np.mean(walls))
    assert found.caveats == ()
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high


def test_a_length_beyond_the_longest_is_extrapolated_and_says_so(latencies: MeasuredLatencies) -> None:
    found, measured = latencies.at("cell", 300), latencies.at("cell", 150)
    assert Code.EXTRAPOLATED in {each.code for each in found.caveats}
    assert 1.7 * measured.value < found.value < 2.1 * measured.value


def test_the_uncertainty_of_the_measurement_is_carried_through() -> None:
    """The interval of worker-hours holds the truth of a known distribution about as often as it says."""
    quiet = {"cell": replace(NATURES["cell"], create_ms=500.0, dispatch_ms=20.0, slowdown=0.0)}
    study = Study("known", ARMS[:1], (Grid(20, ("T0",), lengths=(4,)),), seed=1)
    measured = [MeasuredLatencies(synthetic_results(study, seed=seed, natures=quiet)) for seed in range(60)]
    found = [project(each, Scale(10**6, 4), grid_steps=(4,), grid_trajectories=()).arms[0] for each in measured]
    # The mean of a lognormal with a spread of 0.12, of which one in fifty takes longer by a mean of 1.25 times itself.
    mean = np.exp(0.12**2 / 2) * (1 + 0.02 * 1.25) * 1.00225
    nature = quiet["cell"]
    fixed_ms = nature.create_ms + nature.ready_ms + nature.destroy_ms
    truth = worker_hours(mean * (fixed_ms + 4 * (nature.dispatch_ms + nature.observe_ms)) / 1000, 10**6)
    held = [
        each.worker_hours.low <= truth <= each.worker_hours.high
        for each in found
        if each.worker_hours.low is not None and each.worker_hours.high is not None
    ]
    assert len(held) == 60
    assert np.mean(held) > 0.8  # stragglers are rare, so that twenty trials may not have seen one
    assert np.mean([each.worker_hours.value for each in found]) == pytest.approx(truth, rel=0.02)


def test_an_interval_stands_on_the_lengths_that_it_is_made_of(results: Results, latencies: MeasuredLatencies) -> None:
    """Few trials of another length say nothing about this one."""
    few = tuple(t for t in results.trials if t.condition.length != 10 or t.block % 20 == 0)
    found = MeasuredLatencies(replace(results, trials=few))
    assert found.at("cell", 150) == latencies.at("cell", 150)
    assert found.gap("docker", "cell", 150).n == 30
    assert found.at("cell", 30).low is None  # between 10, of which there are hardly any, and 50


def test_of_a_single_length_what_is_paid_once_is_paid_once(results: Results) -> None:
    """A cell takes 11.5 ms around an action of T0, which takes 2 ms: 150 of them do not take 150 cells."""
    found, once, codes = MeasuredLatencies(results, "T0"), 0.0115, {Code.ONE_LENGTH, Code.EXTRAPOLATED}
    assert found.mean_s("cell", 1) == pytest.approx(once + 0.002, rel=0.1)
    assert found.mean_s("cell", 150) == pytest.approx(once + 150 * 0.002, rel=0.1)
    assert codes <= {each.code for each in found.at("cell", 150).caveats}
    assert not codes & {each.code for each in found.at("cell", 1).caveats}


def test_means_that_stragglers_decide_say_so_and_so_do_lines_that_are_none(results: Results) -> None:
    slow = tuple(
        replace(t, wall_ns=t.wall_ns * 30) if t.condition.length == 150 and t.block % 15 == 0 else t
        for t in results.trials
    )
    found = MeasuredLatencies(replace(results, trials=slow))
    codes = {steps: {each.code for each in found.at("cell", steps).caveats} for steps in (50, 150, 300)}
    assert Code.STRAGGLERS not in codes[50]
    assert Code.STRAGGLERS in codes[150]
    assert {Code.STRAGGLERS, Code.NOT_A_LINE, Code.EXTRAPOLATED} <= codes[300]


def test_an_arm_without_the_longest_trajectories_can_still_be_compared(results: Results) -> None:
    short = tuple(t for t in results.trials if t.condition.arm != "gvisor" or t.condition.length < 150)
    gap = MeasuredLatencies(replace(results, trials=short)).gap("gvisor", "cell", 150)
    assert gap.low is not None
    assert gap.high is not None
    assert 0 < gap.low < gap.value < gap.high


def test_the_difference_of_two_arms_is_surer_than_either(latencies: MeasuredLatencies) -> None:
    """Both ran the same trajectories: what these differ in cancels out."""
    gap, one = latencies.gap("docker", "cell", 150), latencies.at("docker", 150)
    assert gap.low is not None
    assert gap.high is not None
    assert one.low is not None
    assert one.high is not None
    assert gap.high - gap.low < one.high - one.low
    assert gap.value == pytest.approx(one.value - latencies.at("cell", 150).value)


def test_the_grid_spans_50_to_300_steps_and_1e5_to_1e7_trajectories(latencies: MeasuredLatencies) -> None:
    found = project(latencies, Scale())
    assert {point.steps for point in found.grid} == {50, 100, 150, 200, 250, 300}
    assert {point.trajectories for point in found.grid} == {10**5, 10**6, 10**7}
    for point in found.grid:
        hours = [each.value for each in point.worker_hours.values()]
        assert hours == sorted(hours)
        assert set(point.worker_hours) == set(latencies.arms)


def test_where_the_ranking_changes_is_found() -> None:
    """`exec` starts a second earlier and takes ten milliseconds more per action: overtaken at about 100 steps."""
    natures = {
        "exec": Nature(100, 1, 1, 12, 1, slowdown=0.001),
        "guest": Nature(1100, 1, 1, 2, 1, slowdown=0.001),
    }
    study = Study("cross", tuple(Arm(arm, arm) for arm in natures), (Grid(40, ("T0",), lengths=(10, 150)),))
    found = project(MeasuredLatencies(synthetic_results(study, natures=natures)), Scale())
    (change,) = found.rank_changes
    assert (change.overtakes, change.overtaken, change.certain) == ("guest", "exec", True)
    assert 80 < change.steps < 120
    assert next(iter(found.grid[0].worker_hours)) == "exec"
    assert next(iter(found.grid[-1].worker_hours)) == "guest"


class Bent:
    """Two arms that change places, and back again."""

    arms = ("straight", "bent")
    source = "nowhere"
    caveats = ()

    def mean_s(self, arm: str, steps: int) -> float:
        return float(steps) if arm == "straight" else steps + abs(steps - 150) / 10 - 6

    def at(self, arm: str, steps: int) -> Estimate:
        return Estimate(self.mean_s(arm, steps), None, None, 0, "s")

    def gap(self, slow: str, fast: str, steps: int) -> Estimate:
        return Estimate(self.mean_s(slow, steps) - self.mean_s(fast, steps), None, None, 0, "s")

    def lengths(self, steps: Sequence[int]) -> Sequence[int]:
        return steps


def test_arms_that_change_places_twice_are_found_doing_so() -> None:
    found = [(each.steps, each.overtakes) for each in project(Bent(), Scale()).rank_changes]
    assert found == [(91, "bent"), (211, "straight")]


def test_arms_that_are_alike_change_ranks_without_certainty() -> None:
    natures = {"one": NATURES["cell"], "other": NATURES["cell"]}
    study = Study("alike", tuple(Arm(arm, arm) for arm in natures), (Grid(12, ("T0",), lengths=(10, 150)),))
    for seed in range(10):
        found = project(MeasuredLatencies(synthetic_results(study, seed=seed, natures=natures)), Scale())
        assert not any(change.certain for change in found.rank_changes)


def test_caveats_of_the_measurement_stand_on_the_projection(results: Results) -> None:
    emulated = replace(results, arms={"gvisor": {"emulated": True}})
    found = project(MeasuredLatencies(emulated), Scale())
    by_arm = {arm.arm: {each.code for each in arm.caveats} for arm in found.arms}
    assert Code.EMULATED in by_arm["gvisor"]
    assert Code.EMULATED not in by_arm["cell"]
    assert {Code.NO_FLOOR, Code.NOT_EVICTED} <= {each.code for each in found.caveats}


def test_the_null_substrate_and_other_stages_are_not_projected(results: Results) -> None:
    null = replace(results.study, arms=(*results.study.arms[1:], Arm("cell", "null")))
    assert "cell" not in MeasuredLatencies(replace(results, study=null)).arms
    with pytest.raises(InvalidRequest, match="no image trial completed") as caught:
        MeasuredLatencies(results, warmth=Warmth.IMAGE)
    assert caught.value.hint == "there are: cold"
    with pytest.raises(InvalidRequest, match="of T9"):
        MeasuredLatencies(results, "T9")


@pytest.mark.parametrize(
    "changes",
    [
        {"trajectories": 0},
        {"steps": 0},
        {"workers": 0},
        {"price_per_worker_hour": -1.0},
        {"gpu_price_per_hour": float("nan"), "gpus_waiting": 1, "workers": 1},
        {"gpus_waiting": 4, "workers": 1},
        {"gpus_waiting": 4, "gpu_price_per_hour": 1.0},
    ],
)
def test_a_scale_that_means_nothing_is_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        Scale(**changes)  # type: ignore[arg-type]


def test_the_command_reproduces_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("--paper") == 0
    output = capsys.readouterr().out
    for hours in ("278 h", "417 h", "4,167 h", "11,811 h", "6,495 h", "5,316 h"):
        assert output.count(hours) >= 2  # projected and published
    assert output.startswith("projection")
    assert run_command("--latency", "slow=42.52", "--latency", "fast=23.382") == 0
    output = capsys.readouterr().out
    assert "11,811 h" in output
    assert "5,316 h" in output


def test_the_command_projects_results(results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = tuple(trial for trial in results.trials if trial.block % 5 == 0)
    directory = str(write_results(replace(results, trials=few), tmp_path / "results"))
    money = ("--workers", "100", "--price-per-worker-hour", "0.1", "--gpu-price-per-hour", "2", "--gpus-waiting", "8")
    assert run_command(directory, "--trajectories", "1e5", *money) == 0
    output = capsys.readouterr().out
    assert output.startswith("projection: 100,000 trajectories of 150 steps, from T2, cold")
    for word in ("worker-hours", "workers cost", "idle GPUs cost", "assumed", "[no-floor]", "* beyond what was"):
        assert word in output
    grid = [line.split(maxsplit=2) for line in output.split("fewest first\n")[1].splitlines()[1:19]]
    assert {int(steps) for steps, _, hours in grid if "*" in hours} == {200, 250, 300}
    assert run_command(directory, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["kind"] == "projection"
    assert {arm["arm"] for arm in told["arms"]} == {arm.name for arm in ARMS}


def test_the_command_takes_each_name_once() -> None:
    with pytest.raises(InvalidRequest, match="'a' twice"):
        run_command("--latency", "a=1", "--latency", "a=2")


@pytest.mark.parametrize("arguments", [(), ("somewhere", "--paper"), ("--paper", "--latency", "a=1")])
def test_the_command_wants_one_source(arguments: Sequence[str]) -> None:
    with pytest.raises(InvalidRequest, match="one source"):
        run_command(*arguments)


@pytest.mark.parametrize("wrong", [("--steps", "1.5"), ("--steps", "many"), ("--latency", "5"), ("--latency", "a=b")])
def test_the_command_refuses_what_it_cannot_read(wrong: Sequence[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command(*wrong)
    assert ended.value.code == 2


def few_short_trials(walls_ms: dict[int, list[float]]) -> Results:
    """Trials of one arm, by length: too few and too short to say what a long one takes."""
    study = Study("short", (Arm("cell", "cell"),), (Grid(2, ("T0",), lengths=tuple(walls_ms)),), seed=1)
    trials = [
        Trial(number, number, number, Condition("cell", "T0", length), TrialOutcome.COMPLETED, wall_ns, None, {
            Phase.EXECUTE: wall_ns
        })
        for number, (length, wall_ns) in enumerate(
            (length, round(wall_ms * 1e6)) for length, walls in walls_ms.items() for wall_ms in walls
        )
    ]  # fmt: skip
    return Results(study, {}, {}, tuple(trials), len(trials))


def test_no_bound_of_a_projection_is_negative(capsys: pytest.CaptureFixture[str]) -> None:
    noisy = few_short_trials({1: [5.0, 90.0, 6.0, 7.0, 8.0, 9.0], 2: [6.0, 7.0, 95.0, 8.0, 9.0, 10.0]})
    raw = MeasuredLatencies(noisy).at("cell", 150)
    assert raw.low is not None
    assert raw.low < 0 < raw.value, "the line through such trials says nothing of 150 steps"
    found = project(MeasuredLatencies(noisy), Scale())
    for arm in found.arms:
        for estimate in (arm.latency, arm.worker_hours):
            assert estimate.low == 0.0
            assert estimate.value > 0
        assert Code.BELOW_ZERO in {each.code for each in arm.caveats}
    for point in found.grid:
        assert all(hours.value > 0 and (hours.low or 0.0) >= 0 for hours in point.worker_hours.values())
    assert "-" not in " ".join(command._arms_table(found)[1:])


def test_trials_whose_line_falls_below_zero_are_refused() -> None:
    falling = few_short_trials({1: [20.0, 21.0, 22.0, 23.0, 24.0, 25.0], 2: [10.0, 10.0, 10.0, 11.0, 11.0, 11.0]})
    with pytest.raises(InvalidRequest, match="cannot be projected to 150 steps") as caught:
        project(MeasuredLatencies(falling), Scale())
    assert "--steps" in str(caught.value)
    near = project(MeasuredLatencies(falling), Scale(steps=2))
    assert near.grid == (), "nothing that is longer can be projected"


def test_a_gap_between_arms_that_are_alike_begins_at_zero() -> None:
    alike = Study("alike", (Arm("cell", "cell"), Arm("process", "process")), (Grid(20, ("T0",), lengths=(10, 50)),))
    natures = {"cell": NATURES["cell"], "process": NATURES["cell"]}
    found = project(MeasuredLatencies(synthetic_results(alike, natures=natures)), Scale(steps=50))
    assert found.spread is not None
    assert found.spread.latency.low == 0.0
    assert Code.BELOW_ZERO in {each.code for each in found.spread.caveats}
