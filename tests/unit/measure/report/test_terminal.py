"""The summary in a terminal, and the command `report`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dutyfree.cli.main import main
from dutyfree.measure.report import terminal, words
from dutyfree.measure.report.evidence import Evidence
from dutyfree.measure.report.says import says
from dutyfree.measure.report.terminal import summary
from dutyfree.measure.results.records import Results
from dutyfree.measure.stats.analysis import Analysis, Metric, Setting
from dutyfree.model import Phase
from support import report_samples as samples
from support.synthetic_results import write_results

ALL: list[Callable[[], tuple[Results, Analysis]]] = [
    samples.whole,
    samples.tiny,
    samples.alone,
    samples.only_failures,
]


@pytest.mark.parametrize("width", [20, 80, 120])
@pytest.mark.parametrize("sample", ALL)
def test_lines_fit(sample: Callable[[], tuple[Results, Analysis]], width: int) -> None:
    lines = summary(*sample(), width=width).split("\n")
    assert max(map(len, lines)) <= max(width, 80)
    assert all(line.isprintable() for line in lines)


def test_hostile_names_cannot_steer_the_terminal() -> None:
    lines = summary(*samples.hostile(), width=80).split("\n")
    assert all(line.isprintable() for line in lines)
    assert summary(*samples.tiny(), ascii_only=True).isascii()


def test_the_table_has_the_numbers_of_the_analysis() -> None:
    results, analysis = samples.whole()
    text = summary(results, analysis)
    block = text.split("Cold start, T0\n")[1].split("\nCold start")[0].splitlines()
    assert len(block) == len(analysis.arms)
    for line, arm in zip(block, analysis.arms, strict=True):
        told = analysis.summary(Setting("T0").on(arm), Metric.FIRST_OBSERVATION)
        assert told
        assert line.split()[0] == arm
        assert words.value_of(told.p50) in line
        assert words.interval_of(told.p50) in line


def test_sentences_carry_the_letters_of_their_caveats() -> None:
    results, analysis = samples.whole()
    text = " ".join(summary(results, analysis, width=1_000).split())
    for each in says(Evidence(results, analysis)):
        after = text.split(" ".join(each.text.split()))[1]
        assert bool(re.match(r" \([a-z](,[a-z])*\) ", after)) == bool(each.caveats)
    assert "(a) " in text.split("95 % interval")[1]


def test_a_waterfall_shows_each_phase_where_it_begins() -> None:
    results, analysis = samples.whole()
    block = summary(results, analysis, width=100).split("\ndocker-exec, ")[1].split("\ngvisor, ")[0].splitlines()[1:]
    ends = 0
    for line in block:
        if match := re.match(r"  (\w+) +( *)(█+)", line):
            begins = line.index("█")
            assert abs(begins - ends) <= 1 or not ends
            ends = begins + len(match[3])
    assert [line.split()[0] for line in block][:4] == ["create", "setup", "dispatch", "execute"]


def test_names_are_left_out_whole_where_there_is_no_room() -> None:
    phases = [Phase.READY, Phase.DISPATCH, Phase.OBSERVE]
    assert terminal._listed(phases, 24) == "ready, dispatch, observe"
    assert terminal._listed(phases, 23) == "ready and 2 more"
    assert terminal._listed(phases, 12) == "3 phases"


def test_a_study_without_a_completed_trial_has_a_summary() -> None:
    text = summary(*samples.only_failures(), width=1_000)
    assert "4 of 4 trials failed" in text
    assert "For all numbers: 4 of 7 planned trials were run: interrupted" in text


def run(*arguments: object) -> int:
    """The command line."""
    return main([str(each) for each in arguments])


def test_report_writes_beside_the_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_results(samples.only_failures()[0], tmp_path / "study")
    assert run("report", path) == 0
    said = capsys.readouterr().out
    assert (path / "report" / "index.html").exists()
    assert "4 of 4 trials failed" in said
    assert said.rstrip().endswith("report/index.html")


def test_report_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_results(samples.only_failures()[0], tmp_path / "study")
    assert run("report", path, "--output", tmp_path / "out", "--markdown", "--json", "--open", "no") == 0
    told = json.loads(capsys.readouterr().out)
    assert Path(told["page"]) == tmp_path / "out" / "index.html"
    assert Path(told["markdown"]).read_text().startswith("# Rollout infrastructure tax: tiny")
    assert all(Path(each).exists() for each in told["figures"])
    assert "figure-9-concurrency" in told["not_shown"]
    assert told["says"]
    assert not (path / "report").exists()


def test_report_of_what_is_no_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("report", tmp_path / "nowhere") == 2
    assert "holds no results" in capsys.readouterr().err
    empty = write_results(replace(samples.tiny()[0], trials=(), cut_short="interrupted"), tmp_path / "empty")
    assert run("report", empty) == 2
    assert "has no trial yet" in capsys.readouterr().err
    path = write_results(samples.tiny()[0], tmp_path / "study")
    assert run("report", path, "--baseline", "nobody") == 2
    assert "nobody" in capsys.readouterr().err
