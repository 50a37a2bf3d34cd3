"""Advice from a study's results: one study small enough to be worked out by hand, and one with noise."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dutyfree.choose.candidates import read_candidates
from dutyfree.choose.decision import Weights
from dutyfree.choose.trust import Trust
from dutyfree.cli import advise as command
from dutyfree.errors import InvalidRequest, Unsupported
from dutyfree.measure.advise import Question, advise
from dutyfree.measure.design.study import Arm, Condition, Grid, Study, Warmth
from dutyfree.measure.results.records import ActionRecord, Results, Trial, TrialOutcome
from dutyfree.measure.workloads.workload import ActionKind
from dutyfree.model import Isolation, Phase
from support.synthetic_results import NATURES, Nature, synthetic_results, write_results

GIB = 1 << 30
NS_PER_MS = 1_000_000

SMALL = Study(
    "by hand",
    (Arm("process", "process"), Arm("cell", "cell"), Arm("gvisor", "gvisor", {"path": "exec"}), Arm("vm", "vm")),
    (Grid(4, ("T0",), lengths=(2,)),),
)
FACTS: Mapping[str, Mapping[str, Any]] = {
    "process": {"isolation": "none", "emulated": False, "unenforced": ["limit-memory"]},
    "cell": {"isolation": "container", "emulated": False},
    "gvisor": {"isolation": "user-kernel", "emulated": False},
    "vm": {"unavailable": "there is no QEMU"},
}
READY_MS = {"process": [100] * 4, "cell": [200, 300, 300, 400], "gvisor": [1000] * 4}
TAX_MS = {"process": 10, "cell": 20, "gvisor": 30}
EXECUTE_MS = {"process": 1000, "cell": 1000, "gvisor": 1500}


def small() -> Results:
    """Four blocks; of gvisor's trials the last one failed."""
    trials = [
        trial(block, arm, READY_MS[arm][block], TAX_MS[arm], EXECUTE_MS[arm], failed=(arm, block) == ("gvisor", 3))
        for block in range(4)
        for arm in READY_MS
    ]
    numbered = tuple(replace(each, number=index, sequence=index) for index, each in enumerate(trials))
    return Results(SMALL, {}, FACTS, numbered, planned=len(numbered))


def trial(block: int, arm: str, ready_ms: int, tax_ms: int, execute_ms: int, *, failed: bool) -> Trial:
    """Ready after so long, then two actions."""
    half = tax_ms * NS_PER_MS // 2
    action = ActionRecord("act", ActionKind.COMMAND, half, execute_ms * NS_PER_MS, half)
    by_phase = {
        Phase.CREATE: ready_ms * NS_PER_MS,
        Phase.DISPATCH: 2 * half,
        Phase.EXECUTE: 2 * execute_ms * NS_PER_MS,
        Phase.OBSERVE: 2 * half,
    }
    return Trial(
        number=0,
        sequence=0,
        block=block,
        condition=Condition(arm, "T0", 2),
        outcome=TrialOutcome.INFRA_FAILED if failed else TrialOutcome.COMPLETED,
        wall_ns=sum(by_phase.values()),
        first_observation_ns=ready_ms * NS_PER_MS + action.latency_ns,
        by_phase=by_phase,
        actions=(action, action),
    )


QUESTION = Question(
    trust=Trust.MODEL,
    actions=10,
    work_s=20.0,
    weights=Weights(second=1.0, gib_second=0.5, lost_rollout=4.0),
    memory_bytes={"cell": GIB, "gvisor": 2 * GIB},
    prompts=2,
    group=2,
    rate_per_s=2.0,
)

WALLS = {
    "process": Isolation.NONE,
    "cell": Isolation.CONTAINER,
    "docker": Isolation.CONTAINER,
    "docker-exec": Isolation.CONTAINER,
    "gvisor": Isolation.USER_KERNEL,
    "microvm": Isolation.MICROVM,
}


def with_walls(results: Results) -> Results:
    facts = {arm: {**facts, "isolation": WALLS[arm].label} for arm, facts in results.arms.items() if arm in WALLS}
    return replace(results, arms={**results.arms, **facts})


@pytest.fixture(scope="module")
def noisy() -> Results:
    """Six arms, T2 of 10 and 50 actions; microvm is emulated, and has no long trajectories."""
    arms = (
        Arm("process", "process"),
        Arm("cell", "cell"),
        Arm("docker", "docker"),
        Arm("docker-exec", "docker", {"path": "exec"}),
        Arm("gvisor", "gvisor"),
        Arm("microvm", "microvm", max_length=10),
    )
    return with_walls(synthetic_results(Study("noisy", arms, (Grid(30, ("T2",), lengths=(10, 50)),), seed=6)))


def run_command(*arguments: str) -> int:
    """The command as the command line calls it."""
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    options = parser.parse_args(["advise", *arguments])
    return int(options.execute(options))


# ---- worked out by hand


def test_what_is_read_off_the_trials() -> None:
    advice = advise(small(), QUESTION)
    found = {each.candidate.name: each.candidate for each in advice.evidence}
    assert list(found) == ["process", "cell", "gvisor"]
    assert {name: each.acquire_s for name, each in found.items()} == pytest.approx(
        {"process": 0.1, "cell": 0.3, "gvisor": 1.0}
    )
    assert {name: each.action_overhead_s for name, each in found.items()} == pytest.approx(
        {"process": 0.01, "cell": 0.02, "gvisor": 0.03}
    )
    assert {name: each.slowdown for name, each in found.items()} == pytest.approx(
        {"process": 1.0, "cell": 1.0, "gvisor": 1.5}
    )
    assert [found["gvisor"].failure_rate, found["cell"].failure_rate] == [0.25, 0.0]
    assert found["gvisor"].options == {"path": "exec"}
    assert advice.left_out == {"vm": "it could not run: there is no QEMU"}


def test_the_decision_by_hand() -> None:
    """cell: 0.3 + 10 x 0.02 + 20 = 20.5 s of life; 20.5 + 0.5 x 1 x 20.5.

    gvisor: 1 + 10 x 0.03 + 20 x 1.5 = 31.3 s of life; 31.3 + 0.5 x 2 x 31.3 + 0.25 x (62.6 + 4).
    """
    decision = advise(small(), QUESTION).decision
    cell, gvisor = decision.eligible
    assert decision.chosen.name == "cell"
    assert [cell.acquire, cell.actions, cell.work, cell.memory, cell.failure] == pytest.approx([0.3, 0.2, 20, 10.25, 0])
    assert cell.total == pytest.approx(30.75)
    assert [gvisor.memory, gvisor.failure, gvisor.total] == pytest.approx([31.3, 16.65, 79.25])
    assert [each.cost.candidate.name for each in decision.excluded] == ["process"]
    assert decision.crossovers == ()
    assert advise(small(), replace(QUESTION, trust=Trust.UNTRUSTED)).decision.chosen.name == "gvisor"
    assert advise(small(), replace(QUESTION, trust=Trust.TRUSTED)).decision.chosen.name == "process"


def test_the_pool_by_hand() -> None:
    """cell is ready after 0.3 s on average: 0.6 requests meanwhile; P(Poisson(0.6) <= 3) = 0.997."""
    advice = advise(small(), QUESTION)
    assert advice.announced is not None
    assert advice.unannounced is not None
    assert (advice.announced.wanted, advice.announced.size) == (4, 4)
    assert advice.announced.worst_failure_rate == pytest.approx(0.4899, abs=1e-4)  # Wilson's, of 0 of 4
    assert (advice.unannounced.size, advice.unannounced.floor) == (3, 1)
    assert advice.unannounced.in_use == pytest.approx(41)


def test_few_trials_leave_the_choice_open_and_that_is_said() -> None:
    codes = {each.code for each in advise(small(), QUESTION).caveats}
    assert {"too-close", "extrapolated", "no-floor"} <= codes
    assert "no-memory" not in codes
    asked = replace(QUESTION, memory_bytes={"cell": GIB})
    told = [each.text for each in advise(small(), asked).caveats if each.code == "no-memory"]
    assert told
    assert "(for gvisor)" in told[0]


def test_a_class_that_no_arm_meets_is_refused_with_the_reasons() -> None:
    with pytest.raises(Unsupported, match=r"gvisor: its wall is user-kernel; hostile takes microvm or stronger"):
        advise(small(), replace(QUESTION, trust=Trust.HOSTILE))


def test_what_the_study_does_not_have_is_refused_with_what_it_has() -> None:
    with pytest.raises(InvalidRequest, match="no cold trial of T9 completed") as refused:
        advise(small(), replace(QUESTION, workload="T9"))
    assert refused.value.hint == "there are: T0"
    with pytest.raises(InvalidRequest, match="no repository trial completed") as refused:
        advise(small(), replace(QUESTION, warmth=Warmth.REPOSITORY))
    assert refused.value.hint == "there are: cold"
    with pytest.raises(InvalidRequest, match="there is no arm 'cel'"):
        advise(small(), replace(QUESTION, memory_bytes={"cel": 1}))


def test_an_arm_whose_wall_is_not_known_is_never_taken() -> None:
    unknown = replace(small(), arms={**FACTS, "cell": {"isolation": ["container"]}})
    advice = advise(unknown, replace(QUESTION, memory_bytes={}))
    assert advice.left_out["cell"] == "the results do not say how strong its wall is"
    assert advice.decision.chosen.name == "gvisor"


# ---- with noise


def test_the_setting_is_the_nearest_that_most_arms_completed(noisy: Results) -> None:
    """All six have 10 actions, five of them 50: whoever asks for 50 gets those of 10, with a caveat."""
    assert advise(noisy, Question(actions=50)).setting.length == 10
    five = replace(noisy, arms={**noisy.arms}, trials=tuple(t for t in noisy.trials if t.condition.arm != "microvm"))
    assert advise(five, Question(actions=50)).setting.length == 50
    assert advise(five, Question(actions=2)).setting.length == 10


def test_a_length_can_be_asked_for_and_then_some_arms_are_missing(noisy: Results) -> None:
    advice = advise(noisy, Question(length=50))
    assert advice.setting.length == 50
    assert advice.left_out == {"microvm": "no cold trial of T2 with 50 actions was run on it"}
    with pytest.raises(InvalidRequest, match="no cold trial of T2 with 7 actions completed") as refused:
        advise(noisy, Question(length=7))
    assert refused.value.hint == "there are: 10, 50"


def test_numbers_are_near_the_true_ones(noisy: Results) -> None:
    advice = advise(noisy, Question())
    for each in advice.evidence:
        nature: Nature = NATURES[each.candidate.name]
        true_tax_s = (nature.dispatch_ms + nature.observe_ms) / 1000
        assert each.candidate.action_overhead_s == pytest.approx(true_tax_s, rel=0.25)
        assert each.candidate.slowdown == pytest.approx(nature.slowdown, rel=0.25)
        set_up_ms = (60 + 450) * nature.slowdown
        assert each.candidate.acquire_s * 1000 == pytest.approx(nature.create_ms + nature.ready_ms + set_up_ms, rel=0.2)


def test_a_slowdown_that_is_not_beyond_doubt_does_not_decide(noisy: Results) -> None:
    for each in advise(noisy, Question()).evidence:
        low, high = each.slowdown.low, each.slowdown.high
        assert low is not None
        assert high is not None
        assert each.candidate.slowdown == (1.0 if low <= 1 <= high else each.slowdown.value)
    assert advise(noisy, Question()).of("gvisor").candidate.slowdown > 1.5


def test_long_rollouts_leave_the_path_that_is_dear_for_each_action(noisy: Results) -> None:
    """docker-exec pays 65 ms an action where cell pays 0.8."""
    decision = advise(noisy, Question(trust=Trust.MODEL, actions=50, work_s=1.0)).decision
    assert decision.chosen.name == "cell"
    costs = {each.candidate.name: each for each in decision.eligible}
    assert costs["docker-exec"].actions == pytest.approx(50 * 0.065, rel=0.1)


def test_emulated_machines_are_marked_and_no_wall_for_strangers(noisy: Results) -> None:
    advice = advise(noisy, Question(trust=Trust.UNTRUSTED))
    assert advice.decision.chosen.name == "gvisor"
    assert "emulated" in {each.code for each in advice.of("microvm").caveats}
    accepted = advise(noisy, Question(trust=Trust.HOSTILE, accept_emulated=True))
    assert accepted.decision.chosen.name == "microvm"


def test_equal_results_give_equal_advice(noisy: Results) -> None:
    assert advise(noisy, Question(prompts=4)) == advise(noisy, Question(prompts=4))


# ---- the command


def test_the_printed_table_can_be_checked_by_hand(
    noisy: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the measured numbers as they are printed, every cost follows as it is printed."""
    directory = str(write_results(noisy, tmp_path / "results"))
    arguments = ("--actions", "150", "--work-s", "40", "--memory", "cell=1m", "--memory", "docker=256m")
    assert run_command(directory, *arguments, "--lost-rollout-cost", "12", "--prompts", "64", "--rate", "2") == 0
    printed = capsys.readouterr().out
    measured = re.findall(
        r"^(\S+) +\S+(?: \(emulated\))? +([\d.,]+) s +([\d.,]+) ms +([\d.]+)(?: \(.*?\))? +(\d+) of (\d+) +(.+)$",
        printed,
        re.MULTILINE,
    )
    sums = re.findall(r"^(\S+) +" + r" +".join([r"([\d,]+\.\d{3})"] * 6), printed, re.MULTILINE)
    totals = {arm: [float(each.replace(",", "")) for each in terms] for arm, *terms in sums}
    assert len(measured) == len(totals) == 6
    gib = {"1.0 MiB": 1 / 1024, "256.0 MiB": 0.25, "?": 0.0}
    for arm, acquire, tax, slowdown, failed, attempted, memory in measured:
        life = float(acquire) + 150 * float(tax) / 1000 + 40 * float(slowdown)
        paid = life + 0.1 * gib[memory.strip()] * life
        cost = paid + int(failed) / int(attempted) * (paid + 12)
        assert totals[arm][5] == pytest.approx(cost, abs=0.01)
        assert totals[arm][5] == pytest.approx(sum(totals[arm][:5]), abs=0.004)
    eligible = [arm for arm in totals if arm != "process"]
    assert f"decision: {min(eligible, key=lambda arm: totals[arm][5])} costs the least of 5" in printed
    assert "64 prompts x 8 = 512" in printed
    assert "150 actions are beyond the longest trajectory measured, 50 [extrapolated]" in printed


def test_json_is_whole_and_a_client_can_read_it_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = str(write_results(small(), tmp_path / "results"))
    assert run_command(directory, "--json", "--memory", "cell=1g") == 0
    printed = capsys.readouterr().out
    told = json.loads(printed)
    assert (told["kind"], told["chosen"], told["decision"]["trust"]) == ("advice", "cell", "model")
    assert told["decision"]["eligible"][0]["candidate"]["isolation"] == "container"
    file = tmp_path / "advice.json"
    file.write_text(printed)
    expected = advise(small(), Question(memory_bytes={"cell": GIB})).evidence
    assert read_candidates(file) == tuple(each.candidate for each in expected)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"isolation": "castle"}, "no isolation 'castle'"),
        ({"acquire_s": True}, "a number is wanted"),
        ({"acquire_s": -1}, "must lie between"),
        ({"slowdown": 1e309}, "a finite number is wanted"),
        ({"memory_bytes": 10**400}, "a whole number"),
        ({"emulated": "no"}, "true or false is wanted"),
        ({"options": {"path": 1}}, "a string is wanted"),
        ({"colour": "red"}, "no key 'colour'"),
    ],
)
def test_candidates_that_cannot_be_are_refused_with_their_place(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    told = advise(small(), Question()).to_json()
    told["evidence"][1]["candidate"] |= change
    file = tmp_path / "advice.json"
    file.write_text(json.dumps(told))
    with pytest.raises(InvalidRequest, match=complaint) as refused:
        read_candidates(file)
    assert str(file) in refused.value.message


def test_other_files_are_no_candidates(tmp_path: Path) -> None:
    for text, complaint in (
        *(("[]", "not a JSON object"), ("{}", "no advice"), ("{", "damaged")),
        ('{"kind": "advice"}', "'evidence' is missing"),
    ):
        file = tmp_path / "file.json"
        file.write_text(text)
        with pytest.raises(InvalidRequest, match=complaint):
            read_candidates(file)
    with pytest.raises(InvalidRequest, match="cannot read"):
        read_candidates(tmp_path / "nowhere.json")


def test_names_in_results_cannot_move_a_terminals_cursor(
    noisy: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Arms' names are checked when results are read; what else results say is printed without its escapes."""
    arms = {**noisy.arms, "docker": {"unavailable": "\x1b[2Jgone"}}
    without = tuple(each for each in noisy.trials if each.condition.arm != "docker")
    directory = write_results(replace(noisy, arms=arms, trials=without), tmp_path / "results")
    assert run_command(str(directory)) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "left out: docker: it could not run: gone" in printed


@pytest.mark.parametrize("wrong", ["cell", "cell=none", "=1g", "cell=many"])
def test_memory_that_is_no_size_is_wrong_usage(wrong: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command("results", "--memory", wrong)
    assert ended.value.code == 2


def test_a_stage_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    directory = str(write_results(small(), tmp_path / "results"))
    with pytest.raises(InvalidRequest, match="there is no stage 'hot'"):
        run_command(directory, "--stage", "hot")
