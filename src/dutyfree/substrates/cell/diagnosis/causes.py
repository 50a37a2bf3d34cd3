"""Rules that find causes from the results of the steps and the facts of the machine. All functions are pure.

Each rule explains some failed steps; the next rule sees the steps that are left. Rules with certain evidence come
first. For example, EPERM for a system call with invalid arguments can only come from a filter.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from dutyfree.substrates.cell.diagnosis.facts import Facts
from dutyfree.substrates.cell.diagnosis.remedies import Option, Place, Remedy
from dutyfree.substrates.cell.diagnosis.trial import Step, Trial

REFUSED = (errno.EPERM, errno.EACCES)
FIRST_KERNEL = {
    "clone3": (5, 3), "open_tree": (5, 2), "pidfd_open": (5, 3), "openat2": (5, 6), "close_range": (5, 9),
    "mount_setattr": (5, 12),
}  # fmt: skip
"""The first version of the kernel that has a system call."""
UNUSED = ("id-mapped-mount",)
"""Steps that cells do not need."""
COUNTED = {
    "mount-namespace": "mnt", "namespaces": "pid", "network-namespace": "net", "cgroup-namespace": "cgroup",
    "user-namespace": "user", "ids": "user",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a step fails on this machine."""

    name: str
    """A stable name for programs."""
    what: str
    """The cause, as a clause: "the container has no capability NET_ADMIN"."""
    why: str
    """Why cells need what is missing."""
    remedy: Remedy
    steps: tuple[str, ...] = ()
    """The failed steps that this cause explains."""
    minor: bool = False
    """Whether cells still work, with restrictions."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The input of a rule: all results, the failed steps that are not explained yet, and the facts."""

    trial: Trial
    left: tuple[Step, ...]
    facts: Facts

    def step(self, *names: str) -> Step | None:
        """The first of these steps that has failed and is not explained yet."""
        return next((step for step in self.left if step.name in names), None)


Rule = Callable[[Evidence], Cause | None]


def find_causes(trial: Trial, facts: Facts) -> tuple[Cause, ...]:
    """All causes, those that keep cells from working first."""
    left = tuple(step for step in trial.steps if step.failed)
    found: list[Cause] = []
    for rule in (_filter, _old_kernel, _root_cannot_map, *_OTHERS):
        cause = rule(Evidence(trial, left, facts))
        if cause is not None:
            names = {step.name for step in left}
            found.append(replace(cause, steps=tuple(name for name in cause.steps if name in names)))
            left = tuple(step for step in left if step.name not in cause.steps)
    found += [_unexplained(step) for step in left if step.name not in _quiet(facts)]
    found += _surroundings(facts)
    return tuple(sorted(found, key=lambda cause: cause.minor))


def _quiet(facts: Facts) -> tuple[str, ...]:
    """Steps whose failure needs no cause. Root's cells make their user namespace in the step "ids"."""
    return (*UNUSED, "user-namespace") if facts.as_root else UNUSED


def _filter(seen: Evidence) -> Cause | None:
    """The kernel checks the arguments of these calls before privileges, so EPERM can only come from a filter."""
    calls = [name for name, number in seen.trial.calls.items() if _is_filtered(name, number, seen.facts)]
    pivot = seen.step("pivot-root")  # checks privileges first, but a process that could mount the tmpfs has them
    if pivot and pivot.errno == errno.EPERM and seen.facts.filtered:
        calls.append("pivot_root")
    if not calls:
        return None
    explained = tuple(step.name for step in seen.left if step.call in calls and step.errno in (1, errno.ENOSYS))
    whose = "a system call filter" if seen.facts.place is Place.MACHINE else "the container engine's system call filter"
    what = f"{whose} (seccomp) refuses {', '.join(calls[:3])}{', ...' if len(calls) > 3 else ''}"
    return Cause("filter", what, "cells are made of namespaces and mounts", _options(Option.SECCOMP), explained)


def _is_filtered(call: str, number: int, facts: Facts) -> bool:
    if number == errno.ENOSYS:
        return facts.filtered and facts.kernel >= FIRST_KERNEL.get(call, (0, 0))
    return number == errno.EPERM


def _old_kernel(seen: Evidence) -> Cause | None:
    unknown = [name for name, number in seen.trial.calls.items() if number == errno.ENOSYS]
    absent = [name for name in unknown if not _is_filtered(name, errno.ENOSYS, seen.facts)]
    if not absent:
        return None
    needed = ".".join(map(str, max(FIRST_KERNEL.get(name, (0, 0)) for name in absent)))
    version = ".".join(map(str, seen.facts.kernel))
    steps = tuple(step.name for step in seen.left if step.errno == errno.ENOSYS)
    remedy = Remedy(here=(f"use a kernel of version {needed} or later",))
    return Cause("old-kernel", f"the kernel, {version}, has no {', '.join(absent)}", "cells need it", remedy, steps)


def _root_cannot_map(seen: Evidence) -> Cause | None:
    """Since Linux 5.12, root needs this capability to map its own id."""
    step = seen.step("user-namespace", "mount-namespace")
    absent = "SETFCAP" in seen.facts.missing_capabilities
    if step is None or step.call != "uid_map" or seen.facts.as_root or seen.facts.uid != 0 or not absent:
        return None
    what = "root has no capability SETFCAP here"
    remedy = Remedy(frozenset({"SETFCAP"}))
    return Cause("capability", what, "without it, root cannot map its own id", remedy, _refused(seen))


def _apparmor_userns(seen: Evidence) -> Cause | None:
    step = seen.step("user-namespace", "mount-namespace", "tmpfs")
    if step is None or step.errno not in REFUSED or seen.facts.as_root or seen.facts.apparmor_restrict_userns != 1:
        return None
    what = "AppArmor restricts user namespaces (kernel.apparmor_restrict_unprivileged_userns is 1)"
    remedy = _sysctl("kernel.apparmor_restrict_unprivileged_userns=0")
    return Cause("apparmor-userns", what, _WITHOUT_ROOT, remedy, _refused(seen))


def _userns_off(seen: Evidence) -> Cause | None:
    step = seen.step("user-namespace", "ids")
    if step is None or seen.facts.as_root or seen.facts.unprivileged_userns_clone != 0 or step.errno not in REFUSED:
        return None
    what = "user namespaces are for root only (kernel.unprivileged_userns_clone is 0)"
    return Cause("userns-off", what, _WITHOUT_ROOT, _sysctl("kernel.unprivileged_userns_clone=1"), _refused(seen))


def _namespaces_full(seen: Evidence) -> Cause | None:
    full = [step for step in seen.left if step.errno in (errno.ENOSPC, errno.EUSERS) and step.name in COUNTED]
    if not full:
        return None
    # An ordinary user's mount namespace comes with a user namespace: the first failure names the kind.
    kind = COUNTED[full[0].name]
    setting = f"user.max_{kind}_namespaces"
    limit = seen.facts.max_user_namespaces if kind == "user" else None
    what = f"{setting} is 0" if limit == 0 else f"as many {kind} namespaces exist as {setting} allows"
    steps = tuple(step.name for step in full)
    return Cause("namespaces-full", what, "every cell has its own", _sysctl(f"{setting}=65536"), steps)


def _no_userns(seen: Evidence) -> Cause | None:
    step = seen.step("user-namespace", "ids")
    if step is None or step.errno not in (errno.EINVAL, errno.ENOSYS):
        return None
    remedy = Remedy(here=("use a kernel that was built with CONFIG_USER_NS",))
    return Cause(
        "no-userns", "the kernel has no user namespaces", "every cell has its own", remedy, _all_of(seen, step)
    )


def _chroot(seen: Evidence) -> Cause | None:
    step = seen.step("user-namespace", "pivot-root", "mount-namespace", "ids")
    if step is None or seen.facts.root_is_mount:
        return None
    what = "this is a chroot, in which the kernel makes no user namespaces and changes no root"
    remedy = Remedy(here=("enter it with `systemd-nspawn -D DIRECTORY` or `bwrap --bind DIRECTORY /`",))
    return Cause("chroot", what, "a cell changes its root", remedy, _refused(seen, errno.EINVAL))


def _security_module(seen: Evidence) -> Cause | None:
    option = confinement(seen.facts.label)
    steps = _refused(seen)
    if option is None or not set(steps) - {"proc"}:
        return None
    name = "AppArmor" if option is Option.APPARMOR else "SELinux"
    what = f"{name} confines {seen.facts.place.words} (its profile is {seen.facts.label.split(' ')[0]})"
    return Cause("security-module", what, "it refuses mounts", _options(option), steps)


def confinement(label: str) -> Option | None:
    """The security module that confines a process with this label; None if none does."""
    if label.endswith("(enforce)"):
        return Option.APPARMOR
    return Option.SELINUX if ":container_t:" in label else None


def _masked_proc(seen: Evidence) -> Cause | None:
    if seen.step("proc") is None or not seen.facts.masked_proc:
        return None
    shown = ", ".join(seen.facts.masked_proc[:3])
    what = f"parts of /proc are hidden or read-only ({shown}, ...)"
    why = "so the kernel lets no user namespace mount a /proc of its own"
    return Cause("masked-proc", what, why, _options(Option.PROC), ("proc",), minor=True)


def _no_overlay(seen: Evidence) -> Cause | None:
    step = seen.step("overlay")
    if step is None:
        return None
    if step.errno == errno.ENODEV:
        remedy = Remedy(on_machine=("modprobe overlay",))
        return Cause(
            "no-overlay", "the kernel has no overlay file system", _LAYERS, remedy, ("overlay", "overlay-host")
        )
    if seen.facts.as_root or seen.facts.kernel >= (5, 11):
        return None
    version = ".".join(map(str, seen.facts.kernel))
    what = f"the kernel, {version}, lets only root mount overlays"
    remedy = Remedy(here=("use a kernel of version 5.11 or later, or run as root",))
    return Cause("no-user-overlay", what, _LAYERS, remedy, ("overlay", "overlay-host"))


def _root_cannot_be_lower(seen: Evidence) -> Cause | None:
    step = seen.step("overlay-host")
    if step is None:
        return None
    what = f"no overlay can be mounted over the root file system ({seen.facts.root_type})"
    remedy = Remedy(here=("use an image: `dutyfree run --image NAME`, see `dutyfree image --help`",))
    return Cause("root-file-system", what, _LAYERS, remedy, ("overlay-host",), minor=True)


def _initial_root(seen: Evidence) -> Cause | None:
    step = seen.step("pivot-root")
    if step is None or step.errno != errno.EINVAL:
        return None
    what = "the root is the kernel's initial file system, which cannot be changed for another"
    remedy = Remedy(here=("start from a root file system on a disk or tmpfs (switch_root)",))
    return Cause("initial-root", what, "a cell changes its root", remedy, ("pivot-root",))


def _unexplained(step: Step) -> Cause:
    what = f"this machine does not let us {step.words} ({step.outcome})"
    return Cause("unknown", what, "every cell needs it", Remedy(), (step.name,))


def _surroundings(facts: Facts) -> Iterator[Cause]:
    """Causes that no step reveals."""
    if facts.uid == 0 and not facts.as_root and not facts.in_user_namespace:
        names = ", ".join(sorted(facts.missing_capabilities))
        what = f"root has no capability {names} here"
        why = "its cells are made as an ordinary user's, with one user id each"
        yield Cause("few-capabilities", what, why, Remedy(facts.missing_capabilities), minor=True)
    if facts.volatile_state:
        what = f"no lasting directory can be written to, so that state is kept in {facts.volatile_state}"
        yield Cause(
            "state-directory", what, "uppers on disk and images are kept there", Remedy(here=(_STATE,)), minor=True
        )
    if facts.unlimited:
        what = f"nothing limits {', '.join(facts.unlimited)} ({next(iter(facts.unlimited.values()))})"
        yield Cause("limits", what, "limits are held by cgroups", _cgroup_remedy(facts), minor=True)


def _cgroup_remedy(facts: Facts) -> Remedy:
    if facts.cgroup_version == 0:
        return Remedy(on_machine=("mount -t cgroup2 cgroup2 /sys/fs/cgroup",))
    if facts.as_root:
        writable = "mount -o remount,bind,rw /sys/fs/cgroup"
        each = f"for each in {' '.join(facts.unlimited)}; do {writable}/$each; done"
        return Remedy(here=(writable if facts.cgroup_version == 2 else each,))
    if facts.place is not Place.MACHINE:
        return Remedy(here=("limit the container instead (docker run --memory 8g --pids-limit 4096): "
                            "that holds for all of its cells together",))  # fmt: skip
    if facts.cgroup_version == 1:
        return Remedy(on_machine=("run it, or boot with systemd.unified_cgroup_hierarchy=1 (cgroup v2)",))
    return Remedy(here=("systemd-run --user --scope -p Delegate=yes dutyfree ...",))


def _refused(seen: Evidence, *more: int) -> tuple[str, ...]:
    return tuple(step.name for step in seen.left if step.errno in (*REFUSED, *more))


def _all_of(seen: Evidence, like: Step) -> tuple[str, ...]:
    return tuple(step.name for step in seen.left if step.errno == like.errno and step.call == like.call)


def _options(option: Option) -> Remedy:
    return Remedy(options=frozenset({option}))


def _sysctl(setting: str) -> Remedy:
    return Remedy(on_machine=(f"sysctl -w {setting}",))


_WITHOUT_ROOT = "without root, cells are made in a user namespace"
_LAYERS = "a cell's files lie over the host's"
_STATE = "set DUTYFREE_STATE_DIR to a directory that you may write to"
_OTHERS: tuple[Rule, ...] = (
    _namespaces_full, _userns_off, _apparmor_userns, _chroot, _no_userns, _security_module, _masked_proc, _no_overlay,
    _root_cannot_be_lower, _initial_root,
)  # fmt: skip
