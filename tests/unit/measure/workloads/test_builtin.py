"""The built-in workloads: what their files say."""

from __future__ import annotations

from dutyfree.images.recipes.readiness import network_of
from dutyfree.measure.workloads import attrs_history, catalogue
from dutyfree.measure.workloads.workload import ActionKind
from dutyfree.model import Network, Stage


def test_the_workloads_name_the_commits_that_are_made() -> None:
    for name, commit in (("T1", attrs_history.RELEASE_COMMIT), ("T2", attrs_history.BUGGY_COMMIT)):
        lines = [line for stage in catalogue.find(name).stages for line in stage.run]
        assert any(commit in line for line in lines)


def test_t2_has_every_kind_and_its_test_fails_before_it_passes() -> None:
    workload = catalogue.find("T2")
    assert set(workload.mix) == set(ActionKind)
    by_name = {each.name: each for each in workload.opening}
    before, after = by_name["failing-test"], by_name["mended-test"]
    assert before.action == after.action
    assert (before.expect.exit_code, after.expect.exit_code) == (1, 0)


def test_the_network_that_stages_need() -> None:
    assert network_of(catalogue.find("T2").stages) is Network.NONE
    assert network_of([Stage("image"), Stage("repository", network=Network.HOST)]) is Network.HOST
