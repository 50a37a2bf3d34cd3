"""Scenarios and recordings as files, and the command that reads them: strict, and told with their place."""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dutyfree.cli import simulate as command
from dutyfree.errors import InvalidRequest
from dutyfree.pool.routing import Policy
from dutyfree.simulate import agreement, load_recording, parse_recording, replay
from dutyfree.simulate.distributions import Exponential, Fixed, Lognormal, Samples
from dutyfree.simulate.file import distribution, parse_scenario
from dutyfree.simulate.load import Arrivals
from dutyfree.trace import JournalWriter

SMALL = """
[pool]
sandboxes = 12
[recipes]
repositories = 4
rungs = ["base", "dependencies"]
[load]
steps = 2
prompts = 4
group = 4
training_s = 10
actions = 5
think_s = { p50 = 0.5, p95 = 1.0 }
action_s = 0.01
[latencies]
create = { "*" = 0.1 }
stages = { dependencies = 3.0 }
reset = 0.05
"""
PATH = Path("small.toml")


def run_command(*arguments: str) -> int:
    """The command as the command line calls it."""
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    options = parser.parse_args(["simulate", *arguments])
    return int(options.execute(options))


def test_a_scenario_has_what_its_file_says() -> None:
    scenario = parse_scenario(tomllib.loads(SMALL), PATH)
    assert scenario.name == "small"
    assert scenario.pool.limits.sandboxes == 12
    assert scenario.load.trajectories == 32
    assert scenario.latencies.reset == Fixed(0.05)


def test_random_arrivals_are_told_by_their_rate() -> None:
    words = SMALL.replace("steps = 2\nprompts = 4\n", "trajectories = 100\nrate_per_s = 2.5\n")
    load = parse_scenario(tomllib.loads(words.replace("training_s = 10\n", "")), PATH).load
    assert isinstance(load, Arrivals)
    assert (load.trajectories, load.rate_per_s, load.group) == (100, 2.5, 4)


def test_distributions_are_numbers_quantiles_means_or_samples() -> None:
    assert distribution(2) == Fixed(2.0)
    assert distribution({"p50": 1, "p95": 2.5}) == Lognormal(1.0, 2.5)
    assert distribution({"mean": 3.0}) == Exponential(3.0)
    assert distribution([1, 2.5]) == Samples((1.0, 2.5))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("sandboxes = 12", "sandboxes = 0", "small.toml, pool"),
        ("sandboxes = 12", "", "'sandboxes' is missing"),
        ("sandboxes = 12", "sandboxes = 12\nsandboxs = 3", "no key 'sandboxs'"),
        ("think_s = { p50 = 0.5, p95 = 1.0 }", "think_s = { p50 = 0.5 }", "small.toml, load, think_s"),
        ("actions = 5", "actions = []", "small.toml, load, actions"),
        ("stages = { dependencies = 3.0 }", "stages = {}", "the stage 'dependencies'"),
        ('create = { "*" = 0.1 }', "create = { base = 0.1 }", "a creation at 'dependencies'"),
        ("reset = 0.05", "reset = -1", "small.toml, latencies, reset"),
        ("reset = 0.05", "reset = true", "small.toml, latencies, reset"),
        ("steps = 2", "steps = 2\nrate_per_s = 3", "no key 'rate_per_s'"),
        ("steps = 2", "steps = 999999999", "too many"),
        ("repositories = 4", "repositories = 0", "refused"),
        ("[pool]", "[failures]\ncreate = 1.5\n[pool]", "small.toml, failures"),
        ("[pool]", "[contention]\nexponent = 9\n[pool]", "small.toml, contention"),
        ("[pool]", "nodes = 1000000\n[pool]", "nodes"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(old: str, new: str, told: str) -> None:
    assert old in SMALL
    with pytest.raises(InvalidRequest, match=told.replace("*", r"\*")):
        parse_scenario(tomllib.loads(SMALL.replace(old, new)), PATH)


def test_the_command_shows_the_policies_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    assert run_command(str(path), "--quiet") == 0
    shown = capsys.readouterr().out
    assert ["locality", "no-locality", "cold"] in [line.split() for line in shown.splitlines()]
    assert "32 trajectories on 1 node, seed 1" in shown
    assert "no-locality takes" in shown


def test_the_command_tells_all_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    options = ("--policy", "locality", "--nodes", "3", "--trajectories", "48", "--seed", "5", "--json", "--quiet")
    assert run_command(str(path), *options) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["seed"] == 5
    (outcome,) = told["outcomes"]
    assert (outcome["policy"], outcome["nodes"], outcome["trajectories"]) == ("locality", 3, 48)
    assert 0 <= outcome["hit_rate"] <= 1
    assert outcome["readiness"]["count"] == 48


def test_the_command_refuses_less_than_a_step(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    with pytest.raises(InvalidRequest, match="less than a step"):
        run_command(str(path), "--trajectories", "3", "--quiet")


POOL = {"kind": "pool", "policy": "locality", "sandboxes": 4, "at_once": 2, "reset": True, "images": True}
LADDER = {"kind": "ladder", "name": "attrs", "rungs": ["base", "dependencies"], "digests": ["sha256:1", "sha256:2"]}


def recorded() -> Iterator[dict[str, Any]]:
    """A run in which everybody waits for a creation, for none ever finds anything."""
    numbers = Random(3)
    yield {**POOL, "policy": "cold"}
    yield LADDER
    for index in range(400):
        took_s = numbers.lognormvariate(-2.0, 0.3)
        hold_s = numbers.uniform(0.5, 1.5)
        yield {"kind": "took", "operation": "create", "digest": "sha256:2", "seconds": took_s}
        request = {"kind": "request", "at_s": 3.0 * index, "ladder": "attrs", "rung": "cold", "hold_s": hold_s}
        yield {**request, "readiness_s": took_s + 0.001}
    yield {"kind": "took", "operation": "give", "seconds": 0.001}
    yield {"kind": "took", "operation": "destroy", "seconds": 0.01}


def test_a_replay_agrees_with_a_run_whose_latencies_it_has(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "run.journal") as journal:
        journal.extend(recorded())
    recording = load_recording(tmp_path / "run.journal")
    outcome = replay(recording)
    assert outcome.policy == "cold"
    assert outcome.trajectories == 400
    found = agreement(recording, outcome)
    assert found.mean == pytest.approx(1.0, abs=0.15)
    assert found.p95 == pytest.approx(1.0, abs=0.15)
    assert replay(recording, policy=Policy.LOCALITY).readiness.mean_s < outcome.readiness.mean_s


def test_what_was_announced_is_replayed_too() -> None:
    announced = {"kind": "announced", "at_s": 0.5, "ladder": "attrs", "count": 3, "from_s": 60.0, "until_s": 900.0}
    asked = {"kind": "request", "at_s": 60.0, "ladder": "attrs", "rung": "hit", "readiness_s": 0.002, "hold_s": 5.0}
    took = {"kind": "took", "operation": "create", "digest": "sha256:2", "seconds": 2.0}
    with_it = replay(parse_recording([POOL, LADDER, announced, took, asked, asked, asked]))
    without = replay(parse_recording([POOL, LADDER, took, asked, asked, asked]))
    assert with_it.hit_rate == 1.0
    assert with_it.readiness.mean_s == pytest.approx(0.002)
    assert without.hit_rate == 0.0


@pytest.mark.parametrize(
    "records",
    [
        [],
        [POOL],
        [{"kind": "request", "at_s": 0.0, "ladder": "attrs", "hold_s": 1.0}],
        [{**POOL, "policy": "luck"}],
        [{**POOL, "sandboxes": -1}],
        [{**LADDER, "rungs": ["base"]}],
        [{"kind": "took", "operation": "sleep", "seconds": 1.0}],
        [{"kind": "took", "operation": "reset", "seconds": float("nan")}],
        [{"kind": "rumour"}],
        [{"at_s": 1.0}],
    ],
)
def test_recordings_that_say_nothing_are_refused(records: list[dict[str, Any]]) -> None:
    with pytest.raises(InvalidRequest):
        parse_recording(records)
