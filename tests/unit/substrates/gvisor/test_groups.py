"""Limits by control groups, and which of them gVisor keeps."""

from pathlib import Path

import pytest

from dutyfree.errors import SubstrateFailed
from dutyfree.model import Capability, Resources, Usage
from dutyfree.substrates import hierarchies
from dutyfree.substrates.gvisor import groups
from dutyfree.substrates.gvisor.groups import Groups

MIB = 1024 * 1024
UNBOUNDED = Resources(None, None, None, None)


@pytest.mark.parametrize(("enabled", "held"), [("", set()), ("cpu pids", {"cpu"})])
def test_in_a_container_only_what_was_enabled_for_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str, held: set[str]
) -> None:
    # A group with processes in it, as a container sees its own: the kernel refuses to enable any more in it.
    files = {"type": "domain", "procs": "1\n", "controllers": "cpu memory pids", "subtree_control": enabled}
    for name, content in files.items():
        (tmp_path / f"cgroup.{name}").write_text(content)
    monkeypatch.setattr(hierarchies, "mount_points", lambda _: {"": str(tmp_path)})
    monkeypatch.setattr(hierarchies, "groups_in", lambda _: {"": "/"})
    found = groups.find()
    assert (found.version, found.homes.keys()) == (2, held)
    unheld = {each.what for each in found.unenforced(Resources(cpus=1.0))}
    assert (Capability.LIMIT_CPU in unheld) is ("cpu" not in held)


@pytest.mark.parametrize("version", [1, 2])
def test_nothing_is_set_that_was_not_asked_for(version: int) -> None:
    assert groups.plan(version, UNBOUNDED) == {}


def test_what_is_written_for_each_version() -> None:
    resources = Resources(memory_bytes=64 * MIB, cpus=0.5)
    assert groups.plan(1, resources) == {
        "memory": [("memory.limit_in_bytes", str(64 * MIB))],
        "cpu": [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "50000")],
    }
    assert groups.plan(2, resources) == {
        "memory": [("memory.max", str(64 * MIB))],
        "cpu": [("cpu.max", "50000 100000")],
    }


def test_the_smallest_share_is_one_that_the_kernel_takes() -> None:
    assert groups.plan(2, Resources(cpus=0.01))["cpu"] == [("cpu.max", "1000 100000")]


def test_groups_are_made_below_the_owners_and_removed_with_them(tmp_path: Path) -> None:
    for name in ("memory", "cpu"):
        (tmp_path / name).mkdir()
    found = Groups(1, {"memory": tmp_path / "memory", "cpu": tmp_path / "cpu"})
    found.prepare("me")
    resources = Resources(memory_bytes=64 * MIB, cpus=None)
    found.make("me", 3, resources)
    made = found.of("me", 3, resources)
    assert made == [tmp_path / "memory" / "dutyfree-gvisor-me" / "3"]
    assert (made[0] / "memory.limit_in_bytes").read_text() == str(64 * MIB)
    (made[0] / "memory.limit_in_bytes").unlink()  # as the kernel does
    for parent in found.parents("me"):
        groups.remove(parent)
    assert not any(path.name.startswith("dutyfree") for path in tmp_path.rglob("*"))


def test_a_group_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(SubstrateFailed, match="control group"):
        Groups(1, {"cpu": tmp_path / "missing"}).make("me", 1, Resources(cpus=1.0))


def test_what_is_not_held_is_named_with_its_reason(tmp_path: Path) -> None:
    asked = Resources(memory_bytes=64 * MIB, cpus=1.0, pids=10)
    held = Groups(1, {"cpu": tmp_path, "memory": tmp_path})
    assert {each.what for each in held.unenforced(asked)} == {Capability.LIMIT_MEMORY, Capability.LIMIT_PIDS}
    assert any("ends the sandbox" in each.reason for each in held.unenforced(asked))
    assert Capability.LIMIT_CPU in {each.what for each in Groups().unenforced(asked)}
    assert Groups().unenforced(UNBOUNDED) == ()


@pytest.mark.parametrize("file", ["memory.usage_in_bytes", "memory.current"])
def test_usage_is_that_of_the_group_that_counts_memory(tmp_path: Path, file: str) -> None:
    made = [tmp_path / "cpu", tmp_path / "memory"]
    for group in made:
        group.mkdir()
    assert groups.usage([]) is None
    assert groups.usage(made) is None
    (made[1] / file).write_text(f"{64 * MIB}\n")
    assert groups.usage(made) == Usage(64 * MIB)
