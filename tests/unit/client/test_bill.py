"""`host.bill()`: what leases and the pool have cost, from the first lease to after the end of the host."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

import dutyfree
from dutyfree.codec import BILL
from dutyfree.model import Bill, Phase
from dutyfree.pool.billing import Billing
from dutyfree.pool.core import MAX_TRIES
from dutyfree.pool.options import PoolOptions
from dutyfree.substrates.fake import Failure, FailureKind, Latencies
from dutyfree.substrates.fake import Step as FakeStep
from support.pools import until


def phases(bill: Bill) -> set[str]:
    return {str(each.phase) for each in bill.phases}


def check_sums(bill: Bill) -> None:
    """Nothing is negative, and leases paid no more than they had: they ran one after the other."""
    assert all(min(each.waited_ns, each.used_ns, each.background_ns) >= 0 for each in bill.phases)
    assert 0 < bill.work_ns + bill.tax_ns <= bill.wall_ns
    assert 0 <= bill.held_ns <= bill.wall_ns


async def test_a_host_without_a_pool_has_a_bill() -> None:
    host = dutyfree.local("process")
    with pytest.raises(dutyfree.InvalidRequest, match="never open"):
        host.bill()
    async with host:
        for _ in range(3):
            async with host.lease() as box:
                await box.run("sleep 0.03")
                assert host.bill().open_leases == 1
        during = host.bill()
    bill = host.bill()
    check_sums(bill)
    assert (bill.leases, bill.warm, bill.creations, bill.destructions, bill.actions) == (3, 0, 3, 3, 3)
    assert bill.work_ns >= 90e6
    assert bill.hit_rate == 0.0
    assert {"create", "ready", "dispatch", "observe", "destroy"} <= phases(bill)
    assert bill.background_ns == 0, "every lease paid for its own sandbox"
    assert (bill.leases, bill.work_ns) == (during.leases, during.work_ns)
    assert bill.wall_ns == host.bill().wall_ns, "the end of the host ends its bill"
    assert BILL.decode(json.loads(json.dumps(BILL.encode(bill)))) == bill


async def test_the_work_of_a_pool_is_in_the_bill_and_reaches_the_span_listener() -> None:
    spans: list[dutyfree.Span] = []
    slow = Latencies(create_s=0.1, destroy_s=0.02)
    async with dutyfree.local("fake", latencies=slow, pool=PoolOptions(sandboxes=2), on_span=spans.append) as host:
        await host.pool.announce([(dutyfree.Image(), 2)], name="step")
        await until(lambda: host.pool.status().idle == 2)
        warmed = host.bill()
        assert (warmed.leases, warmed.creations, warmed.tax_ns) == (0, 2, 0)
        assert warmed.background_ns >= 200e6
        for _ in range(2):
            async with host.lease() as box:
                await box.run("true")
        between = host.bill() - warmed
        assert (between.leases, between.warm, between.hit_rate) == (2, 2, 1.0)
        assert between.tax_ns < 100e6, "no lease waited for a creation"
        assert between.cold_ns is not None
        assert between.cold_ns >= 200e6, "each would have waited for one"
    bill = host.bill()
    check_sums(bill)
    background = {str(each.phase): each.background_ns for each in bill.phases}
    assert background["create"] >= 200e6
    assert background["destroy"] >= 40e6
    assert {"create", "ready", "destroy", "queue", "execute"} <= {str(span.phase) for span in spans}


async def test_a_lease_that_waits_for_a_creation_pays_for_it() -> None:
    async with dutyfree.local("fake", latencies=Latencies(create_s=0.1), pool=PoolOptions(sandboxes=1)) as host:
        async with host.lease() as box:
            await box.run("true")
        bill = host.bill()
    (create,) = (each for each in bill.phases if each.phase is Phase.CREATE)
    assert create.waited_ns >= 90e6
    assert create.background_ns < 10e6


async def test_stages_are_no_work_of_a_lease() -> None:
    recipe = dutyfree.Recipe(stages=(dutyfree.Stage("repository", run=("sleep 0.1",)),))
    async with dutyfree.local("process", pool=PoolOptions(sandboxes=1)) as host:
        async with host.lease(recipe) as box:
            await box.run("true")
        bill = host.bill()
    (setup,) = (each for each in bill.phases if each.phase is Phase.SETUP)
    assert setup.waited_ns >= 95e6
    assert bill.actions == 1
    assert bill.work_ns < 95e6


async def test_a_build_is_paid_by_the_lease_that_waits_for_it_and_not_by_creations() -> None:
    billing = Billing()
    billing.built(5_000_000, for_lease=True)
    billing.built(7_000_000, for_lease=False)
    billing.creations += 1
    bill = billing.bill("cell", [])
    assert [(each.phase, each.waited_ns, each.background_ns) for each in bill.phases] == [
        (Phase.SETUP, 5_000_000, 7_000_000)
    ]
    assert bill.creation_ns == 0
    recipe = dutyfree.Recipe(stages=(dutyfree.Stage("repository", run=("false",), network=dutyfree.Network.HOST),))
    async with dutyfree.local("process") as host:
        with pytest.raises(dutyfree.Unsupported):
            await host.acquire(recipe)
        assert [(each.during, each.party) for each in host.bill().failures] == [("build", "caller")]


async def test_failures_are_in_the_bill_by_cause() -> None:
    creations = Failure(FakeStep.CREATE, FailureKind.ERROR, set(range(1, MAX_TRIES + 1)))
    async with dutyfree.local("fake", failures=[creations, Failure(FakeStep.RUN, FailureKind.ERROR, {1})]) as host:
        with pytest.raises(dutyfree.InfraFailed):
            await host.acquire()
        async with host.lease() as box:
            with pytest.raises(dutyfree.InfraFailed):
                await box.run("true")
    found = {(each.during, each.party): each.count for each in host.bill().failures}
    assert found == {("create", "substrate"): MAX_TRIES, ("acquire", "substrate"): 1, ("lease", "substrate"): 1}
    assert "SubstrateFailed (substrate) in acquire" in str(host.bill())


async def test_other_substrates_are_projected_by_built_in_or_given_measurements(tmp_path: Path) -> None:
    async with dutyfree.local("process") as host:
        async with host.lease() as box:
            await box.run("true")
        bill = host.bill()
        docker = next(each for each in bill.others if each.name == "docker")
        tax_ns, work_ns = bill.elsewhere_ns(docker)
        assert tax_ns >= docker.acquire_s * 1e9
        assert work_ns == bill.work_ns
        assert "process" not in {each.name for each in bill.others}
        assert "projections, not measured" in str(bill)
        assert "built-in measurements" in str(bill)
        candidate = {
            "name": "mine",
            "substrate": "mine",
            "isolation": "container",
            "acquire_s": 2.0,
            "action_overhead_s": 0.5,
            "slowdown": 3.0,
            "memory_bytes": 0,
            "failure_rate": 0.0,
            "emulated": False,
            "options": {},
        }
        advice = tmp_path / "advice.json"
        advice.write_text(json.dumps({"kind": "advice", "evidence": [{"candidate": candidate}]}))
        given = host.bill(advice=advice)
        assert given.elsewhere_ns(given.others[0]) == (2_500_000_000, 3 * given.work_ns)
        assert str(advice) in str(given)
        with pytest.raises(dutyfree.InvalidRequest):
            host.bill(advice=tmp_path / "none.json")


async def test_map_gives_the_time_of_each_rollout_and_a_line(caplog: pytest.LogCaptureFixture) -> None:
    failures = [Failure(FakeStep.RUN, FailureKind.ERROR, {2})]

    async def work(box: dutyfree.Box, task: int) -> int:
        await box.run("sleep 0.02")
        return task

    with caplog.at_level(logging.INFO, "dutyfree"):
        async with dutyfree.local("fake", failures=failures, latencies=Latencies(create_s=0.01)) as host:
            outcomes = await host.map(work, range(3), concurrency=1)
    assert [each.value for each in outcomes] == [0, 1, 2]
    assert [each.tries for each in outcomes] == [1, 2, 1]
    for each in outcomes:
        timing = each.timing
        assert timing.work_s >= 0.02
        assert timing.tax_s >= timing.ready_s >= 0.01 * each.tries
        assert timing.work_s + timing.tax_s <= timing.wall_s
        assert timing.work_s <= timing.leased_s <= timing.wall_s
    assert outcomes[1].timing.ready_s >= 0.02, "both tries count"
    assert "3 of 3 rollouts done" in outcomes.summary
    assert "1 tried again" in outcomes.summary
    assert outcomes.summary in caplog.text


async def test_the_line_of_a_map_names_what_failed() -> None:
    async def work(box: dutyfree.Box, task: int) -> None:
        await box.run("true")

    async with dutyfree.local("fake", failures=[Failure(FakeStep.CREATE, FailureKind.ERROR)]) as host:
        outcomes = await host.map(work, range(2), retries=0)
        empty = await host.map(work, [])
    assert outcomes.failures == {"substrate/SubstrateFailed": 2}
    assert "0 of 2 rollouts done" in outcomes.summary
    assert "failed: 2 x substrate/SubstrateFailed" in outcomes.summary
    assert all(each.timing.tax_s > 0 for each in outcomes)
    assert empty.summary.startswith("0 of 0 rollouts done")


def test_the_sync_client_has_the_bill_in_every_thread_and_after_its_end() -> None:
    with dutyfree.sync.local("process", pool=PoolOptions(sandboxes=1)) as host:
        outcomes = host.map(lambda box, task: box.run("true").exit_code, range(2), concurrency=1)
        assert "2 of 2 rollouts done" in outcomes.summary
        found: list[Bill] = []
        thread = threading.Thread(target=lambda: found.append(host.bill()))
        thread.start()
        thread.join()
        assert found[0].leases == host.pool.bill().leases == 2
    assert host.bill().destructions >= 1
