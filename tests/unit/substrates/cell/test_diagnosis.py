"""From how the steps of a cell went, as recorded on hosts of each kind, to causes and what mends them."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.images.ownership import ROOT_CAPABILITIES
from dutyfree.substrates.cell.diagnosis import find_causes
from dutyfree.substrates.cell.diagnosis.causes import UNUSED
from dutyfree.substrates.cell.diagnosis.facts import Facts, kernel_version
from dutyfree.substrates.cell.diagnosis.remedies import Option, Place, Remedy, merged
from dutyfree.substrates.cell.diagnosis.trial import STEPS, Step, Trial, parse

CALLS = ("unshare", "mount", "umount2", "setns", "clone3", "open_tree", "mount_setattr", "openat2", "close_range")
ROOT = Facts(as_root=True, kernel=(6, 18), max_user_namespaces=96349)
USER = replace(ROOT, as_root=False, uid=1000, missing_capabilities=frozenset(ROOT_CAPABILITIES))
DOCKER_LACKS = frozenset({"NET_ADMIN", "SYS_ADMIN", "SYS_PTRACE"})
IN_DOCKER = replace(USER, uid=0, place=Place.DOCKER, missing_capabilities=DOCKER_LACKS, filtered=True)
FEW = "add to docker run: --cap-add NET_ADMIN --cap-add SYS_ADMIN --cap-add SYS_PTRACE"
CAPABILITY = st.sampled_from(sorted(ROOT_CAPABILITIES))
MASKED = ("/proc/acpi", "/proc/bus", "/proc/keys", "/proc/sys")
DOCKER_FILTER = "call unshare 1;call mount 1;call umount2 1;call setns 1;call clone3 38;call open_tree 1;"
NOTHING_MADE = (
    "step user-namespace 1 unshare;step mount-namespace 1 unshare;step tmpfs skip mount-namespace;step bind skip tmpfs;"
    "step loopback skip network-namespace;step ids skip mount-namespace;step look skip ids"
)


def trial(text: str) -> Trial:
    """What the program prints, but for the steps that went well."""
    told = parse(text.replace(";", "\n"))
    named = {step.name for step in told.steps}
    return Trial(told.steps + tuple(Step(name) for name in STEPS if name not in named), told.calls)


@pytest.mark.parametrize(
    ("text", "facts", "expected"),
    [
        pytest.param("", ROOT, {}, id="a machine with all that it takes, as root"),
        pytest.param("", USER, {}, id="a machine with all that it takes, as an ordinary user"),
        pytest.param(
            DOCKER_FILTER + NOTHING_MADE,
            IN_DOCKER,
            {"filter": "add to docker run: --security-opt seccomp=unconfined", "few-capabilities": FEW},
            id="docker run",
        ),
        pytest.param(
            "step proc 1 mount",
            replace(IN_DOCKER, filtered=False, masked_proc=MASKED),
            {"masked-proc": "add to docker run: --security-opt systempaths=unconfined", "few-capabilities": FEW},
            id="docker run --security-opt seccomp=unconfined",
        ),
        pytest.param(
            "step pivot-root 1 pivot_root",
            replace(IN_DOCKER, missing_capabilities=frozenset({"NET_ADMIN"})),
            {
                "filter": "add to docker run: --security-opt seccomp=unconfined",
                "few-capabilities": "add to docker run: --cap-add NET_ADMIN",
            },
            id="docker run --cap-add SYS_ADMIN --cap-add SYS_PTRACE",
        ),
        pytest.param(
            "step pivot-root 1 pivot_root",
            replace(ROOT, place=Place.DOCKER, filtered=True),
            {"filter": "add to docker run: --security-opt seccomp=unconfined"},
            id="docker run with all capabilities that root needs",
        ),
        pytest.param(
            "step user-namespace 1 uid_map;step mount-namespace 1 uid_map",
            replace(IN_DOCKER, in_user_namespace=True, place=Place.POD, missing_capabilities=frozenset({"SETFCAP"})),
            {"capability": "securityContext: {capabilities: {add: [SETFCAP]}} in the container"},
            id="a pod with hostUsers: false and all capabilities dropped",
        ),
        pytest.param(
            DOCKER_FILTER + NOTHING_MADE,
            replace(USER, place=Place.POD, filtered=True),
            {"filter": "securityContext: {seccompProfile: {type: Unconfined}} in the container"},
            id="an ordinary user in a pod",
        ),
        pytest.param(
            "step proc 1 mount",
            replace(USER, place=Place.POD, masked_proc=MASKED),
            {
                "masked-proc": "securityContext: {procMount: Unmasked} in the container, "
                "and hostUsers: false in the pod's spec"
            },
            id="an ordinary user in a pod without a filter",
        ),
        pytest.param(
            "step proc 1 mount",
            replace(USER, place=Place.PODMAN, masked_proc=MASKED),
            {"masked-proc": "add to podman run: --security-opt unmask=ALL"},
            id="an ordinary user in podman",
        ),
        pytest.param(
            "step tmpfs 13 mount;step pivot-root skip tmpfs",
            replace(ROOT, place=Place.DOCKER, label="docker-default (enforce)"),
            {"security-module": "add to docker run: --security-opt apparmor=unconfined"},
            id="root in Docker on a machine with AppArmor",
        ),
        pytest.param(
            "step tmpfs 13 mount",
            replace(ROOT, place=Place.PODMAN, label="system_u:system_r:container_t:s0:c1,c2"),
            {"security-module": "add to podman run: --security-opt label=disable"},
            id="root in podman on a machine with SELinux",
        ),
        pytest.param(
            "step user-namespace 1 uid_map;step mount-namespace 1 uid_map",
            replace(USER, apparmor_restrict_userns=1, unprivileged_userns_clone=1),
            {"apparmor-userns": "as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
            id="Ubuntu 24.04",
        ),
        pytest.param(
            "step mount-namespace 1 unshare",
            replace(USER, apparmor_restrict_userns=1),
            {"apparmor-userns": "as root: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
            id="Ubuntu 23.10, where the user namespace can be made and is worth nothing",
        ),
        pytest.param(
            "step user-namespace 1 unshare;step mount-namespace 1 unshare",
            replace(USER, unprivileged_userns_clone=0),
            {"userns-off": "as root: sysctl -w kernel.unprivileged_userns_clone=1"},
            id="Debian 10",
        ),
        pytest.param(
            "step user-namespace 28 unshare;step mount-namespace 28 unshare",
            replace(USER, max_user_namespaces=0),
            {"namespaces-full": "as root: sysctl -w user.max_user_namespaces=65536"},
            id="no user namespaces allowed",
        ),
        pytest.param(
            "step network-namespace 28 unshare;step loopback skip network-namespace",
            replace(ROOT, place=Place.DOCKER),
            {"namespaces-full": "on the machine itself, as root: sysctl -w user.max_net_namespaces=65536"},
            id="no network namespace left",
        ),
        pytest.param(
            "step overlay 1 mount;step overlay-host skip overlay",
            replace(USER, kernel=(5, 10)),
            {"no-user-overlay": "use a kernel of version 5.11 or later, or run as root"},
            id="an ordinary user on kernel 5.10",
        ),
        pytest.param(
            "call mount_setattr 38",
            replace(ROOT, kernel=(5, 10)),
            {"old-kernel": "use a kernel of version 5.12 or later"},
            id="kernel 5.10",
        ),
        pytest.param(
            "step overlay 19 mount;step overlay-host skip overlay",
            ROOT,
            {"no-overlay": "as root: modprobe overlay"},
            id="overlay is not loaded",
        ),
        pytest.param(
            "step user-namespace 1 unshare;step mount-namespace 1 unshare",
            replace(USER, root_is_mount=False),
            {"chroot": "enter it with `systemd-nspawn -D DIRECTORY` or `bwrap --bind DIRECTORY /`"},
            id="a chroot",
        ),
        pytest.param(
            "step pivot-root 22 pivot_root",
            replace(ROOT, root_type="rootfs"),
            {"initial-root": "start from a root file system on a disk or tmpfs (switch_root)"},
            id="an initial ramdisk",
        ),
        pytest.param(
            "",
            replace(USER, unlimited={"memory": "no cgroup was delegated to this user"}, cgroup_version=2),
            {"limits": "systemd-run --user --scope -p Delegate=yes dutyfree ..."},
            id="no delegation",
        ),
        pytest.param(
            "",
            replace(ROOT, unlimited={"memory": "no permission", "pids": "no permission"}, cgroup_version=1),
            {"limits": "for each in memory pids; do mount -o remount,bind,rw /sys/fs/cgroup/$each; done"},
            id="cgroup v1 read-only in a container",
        ),
        pytest.param(
            "",
            replace(USER, place=Place.DOCKER, volatile_state="/tmp/dutyfree-1000/state"),
            {"state-directory": "set DUTYFREE_STATE_DIR to a directory that you may write to"},
            id="docker run --user 1000",
        ),
        pytest.param("step terminals 12 mount", ROOT, {"unknown": ""}, id="something that no rule knows"),
    ],
)
def test_each_kind_of_host_has_its_cause_and_remedy(text: str, facts: Facts, expected: Mapping[str, str]) -> None:
    found = find_causes(trial(text), facts)
    assert {cause.name: cause.remedy.line(facts.place) for cause in found} == expected


def steps() -> st.SearchStrategy[tuple[Step, ...]]:
    errors = st.sampled_from([0, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOSPC, errno.ENODEV, errno.ENOSYS])
    calls = st.sampled_from(["unshare", "mount", "uid_map", "pivot_root", "ioctl", "statfs"])
    one = [st.builds(Step, st.just(name), errors, calls) for name in STEPS]
    return st.tuples(*one)


@st.composite
def hosts(draw: st.DrawFn) -> Facts:
    return Facts(
        as_root=draw(st.booleans()),
        uid=draw(st.sampled_from([0, 1000])),
        place=draw(st.sampled_from(Place)),
        missing_capabilities=frozenset(draw(st.sets(CAPABILITY, min_size=1))),
        filtered=draw(st.booleans()),
        kernel=draw(st.sampled_from([(4, 19), (5, 4), (5, 10), (5, 15), (6, 12)])),
        label=draw(st.sampled_from(["", "unconfined", "docker-default (enforce)"])),
        max_user_namespaces=draw(st.sampled_from([None, 0, 100])),
        unprivileged_userns_clone=draw(st.sampled_from([None, 0, 1])),
        apparmor_restrict_userns=draw(st.sampled_from([None, 0, 1])),
        masked_proc=draw(st.sampled_from([(), MASKED])),
        root_is_mount=draw(st.booleans()),
    )


@given(steps(), st.dictionaries(st.sampled_from(CALLS), st.sampled_from([0, 1, 22, 38])), hosts())
def test_every_failed_step_has_exactly_one_cause(tried: tuple[Step, ...], calls: dict[str, int], facts: Facts) -> None:
    causes = find_causes(Trial(tried, calls), facts)
    explained = [name for cause in causes for name in cause.steps]
    failed = {step.name for step in tried if step.failed} - set(UNUSED) - {"user-namespace"}
    assert len(explained) == len(set(explained))
    assert failed <= set(explained)
    assert all(cause.what and cause.why and "\n" not in cause.remedy.line(facts.place) for cause in causes)
    # Only what no rule knows has no remedy.
    assert all(cause.remedy.line(facts.place) for cause in causes if cause.name != "unknown")


@given(hosts())
def test_where_all_steps_work_nothing_is_to_blame(facts: Facts) -> None:
    causes = find_causes(Trial(tuple(Step(name) for name in STEPS), dict.fromkeys(CALLS, errno.EINVAL)), facts)
    assert {cause.name for cause in causes} <= {"few-capabilities"}
    assert all(cause.minor for cause in causes)


@given(
    st.lists(st.sets(st.sampled_from(sorted(ROOT_CAPABILITIES)))),
    st.sets(st.sampled_from(Option)),
    st.sampled_from(Place),
)
def test_a_merged_remedy_names_all_that_its_parts_name(
    capabilities: list[set[str]], options: set[Option], place: Place
) -> None:
    parts = [Remedy(frozenset(each)) for each in capabilities] + [Remedy(options=frozenset(options))]
    line = merged(parts).line(place)
    assert all(name in line for each in capabilities for name in each)
    assert bool(line) == bool(options or any(capabilities))


@pytest.mark.parametrize(
    ("release", "version"), [("6.18.44-fc-v490", (6, 18)), ("5.10.0-28-amd64", (5, 10)), ("odd", (0, 0))]
)
def test_kernel_versions(release: str, version: tuple[int, int]) -> None:
    assert kernel_version(release) == version
