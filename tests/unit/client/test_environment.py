"""The environment of a lease: read, changed, refused, and brought back by a reset."""

from __future__ import annotations

import pickle

import pytest

import dutyfree
from dutyfree.errors import InvalidRequest, LeaseLost
from dutyfree.leases.binding import MAX_ENTRIES, MAX_ENVIRONMENT_BYTES
from dutyfree.leases.secret import Secret

HUSH = "hush-0123456789-hush"


async def test_changes_hold_for_later_actions_of_every_box_of_the_lease() -> None:
    async with dutyfree.local("process") as host, host.lease(env={"A": "1", "GONE": "x"}) as box:
        other = await host.get(box.lease.id)
        assert dict(box.env) == {"A": "1", "GONE": "x", "DUTYFREE_LEASE": box.lease.id, "DUTYFREE_OWNER": ""}
        async with box.session() as before:
            await box.set_env({"A": "2", "B": "3", "GONE": None, "NEVER": None})
            assert (await before.run("echo $A$B$GONE")).text == "1x\n"
        assert (await other.run("echo $A$B$GONE")).text == "23\n"
        assert (await other.run("echo $A$B", env={"A": "own"})).text == "own3\n"
        async with other.session() as after:
            assert (await after.run("echo $A$B")).text == "23\n"
        assert other.env["B"] == "3"
        assert "GONE" not in box.env


async def test_it_can_only_be_read() -> None:
    async with dutyfree.local("process") as host, host.lease() as box:
        with pytest.raises(TypeError):
            box.env["A"] = "1"  # type: ignore[index]


async def test_secrets_can_be_read_and_do_not_show() -> None:
    async with dutyfree.local("process") as host, host.lease(secrets={"TOKEN": HUSH}) as box:
        await box.set_env({"TOKEN": HUSH + "2", "NEW": Secret(HUSH)})
        assert (await box.run("echo $TOKEN $NEW")).text == f"{HUSH}2 {HUSH}\n"
        assert box.env["NEW"] == HUSH
        assert HUSH not in f"{box.env} {box.env!r} {dict(box.env)} {list(box.env.values())}"
        with pytest.raises(TypeError):
            pickle.dumps(box.env)
        await box.set_env({"TOKEN": None})
        assert (await box.run("echo $TOKEN")).text == "\n"


@pytest.mark.parametrize(
    "wrong",
    [
        {"DUTYFREE_LEASE": "x"},
        {"DUTYFREE_LEASE": None},
        {"A=B": "x"},
        {"": "x"},
        {"A": "x\0"},
        {"A": 1},
        {1: "A"},
        {"A": "x" * MAX_ENVIRONMENT_BYTES},
        {f"A{number}": "" for number in range(MAX_ENTRIES + 1)},
    ],
    ids=range(9),
)
async def test_wrong_changes_are_refused_as_a_whole(wrong: dict[str, str]) -> None:
    async with dutyfree.local("process") as host, host.lease(env={"A": "1"}) as box:
        before = dict(box.env)
        with pytest.raises(InvalidRequest):
            await box.set_env({"FIRST": "1", **wrong})
        assert dict(box.env) == before
        assert (await box.run("echo $A$FIRST")).text == "1\n"


async def test_changes_end_with_the_lease() -> None:
    async with dutyfree.local("process") as host:
        async with host.lease() as box:
            await box.set_env({"A": "1"})
        with pytest.raises(LeaseLost):
            await box.set_env({"A": "2"})
        async with host.lease() as box:
            assert "A" not in box.env


async def test_a_reset_brings_the_environment_of_the_beginning_back() -> None:
    async with dutyfree.local("cell") as host, host.lease(env={"A": "1"}, secrets={"TOKEN": HUSH}) as box:
        await box.set_env({"A": None, "B": "2", "TOKEN": "other"})
        (fork,) = await box.fork(1)
        assert (await fork.run("echo $A$B")).text == "2\n"
        await fork.reset()
        assert fork.env["B"] == "2"
        await box.reset()
        assert (await box.run("echo $A $B $TOKEN")).text == f"1 {HUSH}\n"
        assert (await fork.run("echo $A$B")).text == "1\n"


def test_the_client_without_await_has_it() -> None:
    with dutyfree.sync.local("process") as host, host.lease() as box:
        box.set_env({"A": "1"})
        assert box.env["A"] == "1"
        assert box.run("echo $A").text == "1\n"
