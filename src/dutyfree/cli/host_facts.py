"""Facts of this machine that sandboxes depend on, read from the kernel's files."""

from __future__ import annotations

import os
import pwd
import sys

from dutyfree import machine


def host_facts() -> dict[str, str]:
    """Facts by name, in words."""
    kernel = os.uname()
    return {
        "kernel": kernel.release,
        "machine": f"{kernel.machine}, {os.cpu_count()} CPUs",
        "python": ".".join(map(str, sys.version_info[:3])),
        "user": _user(),
        "cgroups": machine.cgroups(),
        "user namespaces": _user_namespaces(),
        "overlayfs": _overlayfs(),
        "subordinate ids": _subordinate_ids(),
    }


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _user() -> str:
    return "root" if os.geteuid() == 0 else f"{_user_name()} (ordinary user)"


def _user_namespaces() -> str:
    most = machine.read("/proc/sys/user/max_user_namespaces")
    if most is None or most.strip() == "0":
        return "no"
    if os.geteuid() != 0:
        if (machine.read("/proc/sys/kernel/unprivileged_userns_clone") or "1").strip() == "0":
            return "root only (kernel.unprivileged_userns_clone is 0)"
        if (machine.read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") or "0").strip() == "1":
            return "restricted by AppArmor (kernel.apparmor_restrict_unprivileged_userns is 1)"
    return "yes"


def _overlayfs() -> str:
    known = (machine.read("/proc/filesystems") or "").split()
    return "yes" if "overlay" in known else "not loaded (as root: modprobe overlay)"


def _subordinate_ids() -> str:
    owners = (_user_name(), str(os.geteuid()))
    for line in (machine.read("/etc/subuid") or "").splitlines():
        owner, _, span = line.partition(":")
        if owner in owners and span:
            start, _, count = span.partition(":")
            return f"{count} from {start}"
    return "none in /etc/subuid"
