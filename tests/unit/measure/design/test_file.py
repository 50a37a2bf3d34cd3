"""Studies as files and as words: what is understood, and what is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.errors import InvalidRequest
from dutyfree.measure.design.file import arm_from_words, load_study
from dutyfree.measure.design.study import Arm, Grid, Study, Warmth
from dutyfree.measure.results.study_json import study_as_json, study_from_json
from dutyfree.model import Resources

FULL = """
name = "cold start"
seed = 7
time_limit_s = 7200
trial_timeout_s = 60.5
evict = ["page-cache"]
keep_think_time = true

[resources]
memory_mib = 256
disk_mib = "none"
cpus = 0.5
pids = 100

[[arm]]
substrate = "cell"

[[arm]]
name = "docker-exec"
substrate = "docker"
options = { path = "exec", flag = true, count = 3 }
image = "python"
max_trials = 30
max_length = 50

[[grid]]
trials = 100
workloads = ["T0", "T1"]
lengths = [1, 10]
stages = ["cold", "dependencies"]
concurrency = [1, 4]
arms = ["cell"]

[[grid]]
trials = 3
workloads = ["T2"]
"""
LEAST = """
[[arm]]
substrate = "cell"
[[grid]]
trials = 1
workloads = ["T0"]
"""


def written(directory: Path, text: str) -> Path:
    path = directory / "mine.toml"
    path.write_text(text)
    return path


def test_all_that_a_file_can_say(tmp_path: Path) -> None:
    study = load_study(written(tmp_path, FULL))
    exec_options = {"path": "exec", "flag": "true", "count": "3"}
    assert study == Study(
        name="cold start",
        arms=(
            Arm("null", "null"),
            Arm("cell", "cell"),
            Arm("docker-exec", "docker", exec_options, "python", max_trials=30, max_length=50),
        ),
        grids=(
            Grid(100, ("T0", "T1"), (1, 10), (Warmth.COLD, Warmth.DEPENDENCIES), (1, 4), ("cell",)),
            Grid(3, ("T2",)),
        ),
        seed=7,
        resources=Resources(memory_bytes=256 * 1024**2, disk_bytes=None, cpus=0.5, pids=100),
        trial_timeout_s=60.5,
        time_limit_s=7200.0,
        evict=("page-cache",),
        keep_think_time=True,
    )
    assert study_from_json(json.loads(json.dumps(study_as_json(study))), "here") == study


def test_the_least_that_a_file_must_say(tmp_path: Path) -> None:
    study = load_study(written(tmp_path, LEAST))
    assert study.name == "mine"
    assert [arm.name for arm in study.arms] == ["null", "cell"]
    assert study.grids == (Grid(1, ("T0",)),)


def test_the_floor_can_be_switched_off(tmp_path: Path) -> None:
    study = load_study(written(tmp_path, f"null = false\n{LEAST}"))
    assert [arm.name for arm in study.arms] == ["cell"]


def test_a_workload_beside_the_file_is_found_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "own.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "studies", LEAST.replace('"T0"', '"T0", "own.toml"'))
    assert load_study(path).grids[0].workloads == ("T0", "studies/own.toml")


def test_a_workload_that_is_not_beside_the_file_is_not_looked_for_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "own.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path / "studies", LEAST.replace('"T0"', f'"own.toml", "{tmp_path}/own.toml"'))
    assert load_study(path).grids[0].workloads == ("studies/own.toml", f"{tmp_path}/own.toml")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("trials = 1", "trials = 0"), "trials"),
        (("trials = 1", "trials = true"), "grid 1, trials"),
        (("trials = 1", "trails = 1"), "no key 'trails'"),
        (('["T0"]', '"T0"'), "grid 1, workloads"),
        (('["T0"]', "[]"), "workloads"),
        (('["T0"]', '[""]'), "workloads"),
        (("trials = 1", "trials = 1\nlengths = [0]"), "lengths"),
        (("trials = 1", "trials = 1\nlengths = []"), "lengths"),
        (("trials = 1", 'trials = 1\nlengths = ["most"]'), "lengths"),
        (("trials = 1", "trials = 3\nconcurrency = [1, 4]"), "never 4 at once"),
        (("trials = 1", "trials = 100000\nlengths = [1, 2]"), "400000 trials"),
        (("trials = 1", 'trials = 1\nstages = ["hot"]'), "there is no stage 'hot'"),
        (("trials = 1", "trials = 1\nconcurrency = [100000]"), "concurrencies"),
        (("trials = 1", 'trials = 1\narms = ["docker"]'), "'docker'"),
        (('substrate = "cell"', ""), "arm 1: 'substrate' is missing"),
        (('substrate = "cell"', 'substrate = "cell"\nname = "a\\u001b[2J"'), "arm 1, name"),
        (('substrate = "cell"', 'substrate = "cell"\nmax_trials = 0'), "arm 1, max_trials"),
        (('substrate = "cell"', 'substrate = "cell"\noptions = { a = [1] }'), "arm 1, options"),
        (('substrate = "cell"', 'substrate = "cell"\n[[arm]]\nsubstrate = "cell"'), "two arms"),
        (("[[arm]]", 'evict = ["dentries"]\n[[arm]]'), "'dentries' cannot be evicted"),
        (("[[arm]]", "trial_timeout_s = -1\n[[arm]]"), "must be positive"),
        (("[[arm]]", "trial_timeout_s = nan\n[[arm]]"), "trial_timeout_s"),
        (("[[arm]]", f"trial_timeout_s = 1{'0' * 400}\n[[arm]]"), "trial_timeout_s"),
        (("[[arm]]", "[resources]\nmemory_mib = 1e308\n[[arm]]"), "memory_mib"),
        (("[[arm]]", "[resources]\nmemory_mib = 1\n[[arm]]"), "resources"),
        (("[[arm]]", "[resources]\nmemory = 1\n[[arm]]"), "no key 'memory'"),
        (("[[arm]]", "seed = 1.5\n[[arm]]"), "seed"),
        (("[[grid]]", "[grid]"), "grid"),
        (("[[arm]]", "[[arm"), "not TOML"),
    ],
)
def test_a_mistake_is_refused_with_its_place(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    path = written(tmp_path, LEAST.replace(*change, 1))
    with pytest.raises(InvalidRequest) as caught:
        load_study(path)
    assert told in caught.value.message
    assert str(path) in caught.value.message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot read the study"):
        load_study(tmp_path / "none.toml")


def test_arms_as_words() -> None:
    assert arm_from_words("cell") == Arm("cell", "cell")
    found = arm_from_words("docker:path=exec,image=python,max_trials=3,max_length=10")
    assert (found.substrate, found.options, found.image) == ("docker", {"path": "exec"}, "python")
    assert (found.max_trials, found.max_length) == (3, 10)
    assert found.name == "docker-exec-python"
    assert arm_from_words("docker:path=exec,name=as people do").name == "as people do"


@pytest.mark.parametrize(
    "words",
    [
        "",
        "cell:max_trials=" + "9" * 5000,
        ":a=b",
        "docker:",
        "docker:path",
        "docker:a=1,a=2",
        "cell:max_trials=0",
        "cell:=x",
    ],
)
def test_words_that_are_no_arm(words: str) -> None:
    with pytest.raises(InvalidRequest):
        arm_from_words(words)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_json_that_is_no_study_is_refused(value: object) -> None:
    study = study_as_json(Study("s", (Arm("a", "a"),), (Grid(1, ("T0",)),)))
    for name in study:
        changed = json.loads(json.dumps({**study, name: value}))
        with suppress(InvalidRequest):
            read = study_from_json(changed, "here")
            assert json.loads(json.dumps(study_as_json(read))) == changed or value is None


def test_a_key_is_no_option_of_an_arm() -> None:
    with pytest.raises(InvalidRequest, match="would be written into the results"):
        arm_from_words("hosted:api_key=e2b_secret")
