"""What an engine is asked for: containers, execs, the guest's archive; and what is made of its answers."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest

from dutyfree.errors import SubstrateUnavailable
from dutyfree.model import Capability, Image, Mount, Network, Resources, SandboxSpec
from dutyfree.substrates.docker import counters, facts, plan
from dutyfree.substrates.docker.address import Address
from dutyfree.substrates.sources import Source

LIMITS = frozenset({Capability.LIMIT_MEMORY, Capability.LIMIT_PIDS, Capability.LIMIT_CPU})


def engine(**changes: Any) -> facts.Facts:
    known = {
        "version": "20.10",
        "api": (1, 41),
        "local": True,
        "cpus": 2,
        "limits": LIMITS,
        "runtimes": frozenset({"runc"}),
        "bridge": True,
    }
    return facts.Facts(**{**known, **changes})


def document(spec: SandboxSpec, runtime: str | None = None, **changes: Any) -> dict[str, Any]:
    return plan.container("sha256:1", spec, engine(**changes), owner="1-abc-def", user="0:0", runtime=runtime)


def test_a_container_runs_the_guest_alone_and_goes_with_its_stream() -> None:
    made = document(SandboxSpec(hostname="box"))
    assert made["Entrypoint"] + made["Cmd"] == [plan.GUEST, "--stdio"]
    assert (made["OpenStdin"], made["StdinOnce"], made["Tty"]) == (True, True, False)
    assert made["HostConfig"]["AutoRemove"] is True
    assert made["HostConfig"]["LogConfig"] == {"Type": "none"}
    assert made["Hostname"] == "box"
    assert made["Labels"][plan.OWNER_LABEL] == "1-abc-def"
    mount = made["HostConfig"]["Mounts"][0]
    assert (mount["Target"], mount["ReadOnly"]) == (plan.GUEST_DIRECTORY, True)


def test_secrets_of_a_spec_are_not_told_to_the_engine() -> None:
    assert "secret" not in str(document(SandboxSpec(env={"TOKEN": "secret"})))


def test_a_container_has_few_privileges() -> None:
    host = document(SandboxSpec())["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert not {"SYS_ADMIN", "NET_RAW", "SYS_PTRACE", "MKNOD"} & set(host["CapAdd"])
    assert host["SecurityOpt"] == ["no-new-privileges"]
    assert not host.get("Privileged")


@pytest.mark.parametrize("network", list(Network))
def test_networks(network: Network) -> None:
    assert document(SandboxSpec(network=network))["HostConfig"]["NetworkMode"] == network.value


def test_limits_are_asked_for_where_the_engine_holds_them() -> None:
    spec = SandboxSpec(Resources(memory_bytes=2**26, cpus=0.5, pids=64, disk_bytes=2**30))
    host = document(spec)["HostConfig"]
    assert (host["Memory"], host["MemorySwap"]) == (2**26, 2**26)
    assert (host["NanoCpus"], host["PidsLimit"]) == (500_000_000, 64)
    assert "StorageOpt" not in host
    assert [each.what for each in plan.unenforced(spec, engine())] == [Capability.LIMIT_DISK]
    sized = document(spec, limits=LIMITS | {Capability.LIMIT_DISK})["HostConfig"]
    assert sized["StorageOpt"] == {"size": str(2**30)}
    none = document(spec, limits=frozenset())["HostConfig"]
    assert not {"Memory", "MemorySwap", "NanoCpus", "PidsLimit", "StorageOpt"} & set(none)
    assert len(plan.unenforced(spec, engine(limits=frozenset()))) == 4


def test_limits_that_the_runtime_does_not_keep_are_named_whatever_the_engine_says() -> None:
    weak = {Capability.LIMIT_PIDS: "it counts its own", Capability.HOST_NETWORK: "it has none"}
    named = plan.unenforced(SandboxSpec(Resources(disk_bytes=None)), engine(), weak)
    assert [(each.what, each.reason) for each in named] == [(Capability.LIMIT_PIDS, "it counts its own")]
    spec = SandboxSpec()
    made = plan.container("sha256:1", spec, engine(), owner="o", user="0:0", runtime="runsc", pids=False)
    assert "PidsLimit" not in made["HostConfig"]
    assert "Memory" in made["HostConfig"]


def test_no_limits() -> None:
    spec = SandboxSpec(Resources(None, None, None, None))
    assert not {"Memory", "NanoCpus", "PidsLimit"} & set(document(spec)["HostConfig"])
    assert plan.unenforced(spec, engine(limits=frozenset())) == ()


def test_no_more_processors_are_asked_for_than_there_are() -> None:
    assert document(SandboxSpec(Resources(cpus=64)))["HostConfig"]["NanoCpus"] == 2_000_000_000


def test_a_runtime_and_what_an_older_engine_does_not_know() -> None:
    assert document(SandboxSpec(), "runsc")["HostConfig"]["Runtime"] == "runsc"
    assert "Runtime" not in document(SandboxSpec())["HostConfig"]
    assert document(SandboxSpec())["HostConfig"]["CgroupnsMode"] == "private"
    assert "CgroupnsMode" not in document(SandboxSpec(), api=(1, 40))["HostConfig"]


def test_what_others_make_of_ours_bears_no_mark_by_which_it_would_be_removed() -> None:
    # An image that somebody commits from our container inherits the container's labels, and a container that somebody
    # runs from our snapshot inherits the image's.
    assert document(SandboxSpec())["Labels"][plan.SNAPSHOT_LABEL] == ""
    assert plan.snapshot_changes("1-a-b") == ['LABEL dutyfree.owner="" dutyfree.snapshot="1-a-b"']


def test_the_guests_archive() -> None:
    with tarfile.open(fileobj=io.BytesIO(plan.guest_archive(b"program"))) as archive:
        (member,) = archive.getmembers()
        content = archive.extractfile(member)
        assert content is not None
        assert (member.name, member.mode, content.read()) == ("guest", 0o755, b"program")


def test_the_environment_of_an_image() -> None:
    config = {"Env": ["A=1", "B=x=y", "broken", "=z", 7], "WorkingDir": "/srv"}
    told = Image(reference="app", over_host=False, env={"A": "2"}, cwd="/opt")
    assert plan.environment(config, told).items() >= {"A": "2", "B": "x=y", "HOME": "/root"}.items()
    assert plan.directory(config, told) == "/opt"
    assert plan.directory(config, Image(reference="app", over_host=False)) == "/srv"
    assert plan.directory({}, Image(reference="app", over_host=False)) == "/"
    assert plan.environment({"Env": None}, Image()) == plan.environment({}, Image())


def test_what_can_be_done_is_what_the_engine_says() -> None:
    here = plan.capabilities(engine())
    assert {Capability.BRIDGE_NETWORK, Capability.HOST_PROCESSES, Capability.LIMIT_MEMORY} <= here
    elsewhere = plan.capabilities(engine(bridge=False, local=False, limits=frozenset()))
    assert not {Capability.BRIDGE_NETWORK, Capability.HOST_PROCESSES, Capability.LIMIT_MEMORY} & elsewhere


@pytest.mark.parametrize("told", [{}, {"ApiVersion": "new"}, {"ApiVersion": "1"}])
def test_what_is_no_docker_engine(told: dict[str, Any]) -> None:
    with pytest.raises(SubstrateUnavailable, match="not a Docker engine"):
        facts.api_version(told)


def test_an_engine_that_is_too_old() -> None:
    with pytest.raises(SubstrateUnavailable, match=r"too old.*hint: 1\.40 is needed"):
        facts.api_version({"ApiVersion": "1.39"})
    assert facts.api_version({"ApiVersion": "1.40"}) == (1, 40)


def test_an_engine_elsewhere_is_told_from_one_here() -> None:
    version = {"ApiVersion": "1.43"}
    info: dict[str, Any] = {
        "Name": "elsewhere",
        "KernelVersion": "6.1",
        "NCPU": 4,
        "MemoryLimit": True,
        "Driver": "btrfs",
    }
    info |= {"Runtimes": {"runc": {}, "runsc": {}}}
    read = facts.read(Address(path="/run/docker.sock"), version, info, [{"Driver": "null"}])
    assert (read.local, read.bridge, read.cpus) == (False, False, 4)
    assert read.limits == {Capability.LIMIT_MEMORY, Capability.LIMIT_DISK}
    assert read.runtimes == {"runc", "runsc"}


V1_MOUNTS = """\
24 20 0:21 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
25 20 0:22 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
26 20 0:23 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V2_MOUNTS = "24 20 0:21 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def test_counters_of_both_versions() -> None:
    v1 = counters.find("c0ffee", "5:memory:/docker/c0ffee\n4:pids:/docker/c0ffee\n0::/docker/c0ffee\n", V1_MOUNTS)
    assert v1 is not None
    assert v1.oom == "/sys/fs/cgroup/memory/docker/c0ffee/memory.oom_control"
    assert v1.pids == "/sys/fs/cgroup/pids/docker/c0ffee/pids.events"
    assert v1.memory == "/sys/fs/cgroup/memory/docker/c0ffee/memory.usage_in_bytes"
    v2 = counters.find("c0ffee", "0::/system.slice/docker-c0ffee.scope\n", V2_MOUNTS)
    assert v2 is not None
    assert v2.oom == "/sys/fs/cgroup/system.slice/docker-c0ffee.scope/memory.events"
    assert v2.pids == "/sys/fs/cgroup/system.slice/docker-c0ffee.scope/pids.events"
    assert v2.memory == "/sys/fs/cgroup/system.slice/docker-c0ffee.scope/memory.current"


def test_a_process_that_is_not_the_containers_is_not_believed() -> None:
    assert counters.find("c0ffee", "0::/user.slice\n", V2_MOUNTS) is None
    assert counters.watch("c0ffee", 2**22 + 1) is None


def test_what_is_shown_is_a_bind_that_is_read_only_and_not_recursive() -> None:
    spec = SandboxSpec(mounts=(Mount("/link", "/data"), Mount("/file", "/etc/file")))
    sources = (Source("/real", True, 1, 2), Source("/file", False, 1, 3))
    made = plan.container("sha256:1", spec, engine(), owner="o", user="0:0", runtime=None, sources=sources)
    shown = made["HostConfig"]["Mounts"][1:]
    assert [(each["Type"], each["Source"], each["Target"]) for each in shown] == [
        ("bind", "/real", "/data"),
        ("bind", "/file", "/etc/file"),
    ]
    assert all(each["ReadOnly"] and each["BindOptions"]["NonRecursive"] for each in shown)


def test_only_a_root_with_an_engine_of_this_machine_has_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    for local, user, claimed in ((True, 0, True), (True, 1000, False), (False, 0, False)):
        monkeypatch.setattr(plan.os, "geteuid", lambda user=user: user)
        facts = engine(local=local)
        assert (Capability.MOUNTS in plan.capabilities(facts)) is claimed
        assert (plan.without_mounts(facts) == "") is claimed
