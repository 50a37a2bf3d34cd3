"""What this machine offers to sandboxes, read from the kernel's own files."""

from __future__ import annotations

import os
import platform
import pwd
from pathlib import Path


def host_facts() -> dict[str, str]:
    """Each fact by its name, in words."""
    return {
        "kernel": platform.release(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "python": platform.python_version(),
        "user": _user(),
        "cgroups": _cgroups(),
        "user namespaces": _user_namespaces(),
        "overlayfs": _overlayfs(),
        "subordinate ids": _subordinate_ids(),
    }


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _user() -> str:
    return "root" if os.geteuid() == 0 else f"{_user_name()} (ordinary user)"


def _cgroups() -> str:
    controllers = _read("/sys/fs/cgroup/cgroup.controllers")
    if controllers is not None:
        return f"v2, controllers: {', '.join(controllers.split()) or 'none'}"
    mounts = [line.split() for line in (_read("/proc/self/mounts") or "").splitlines()]
    options = {option for mount in mounts if mount[2:3] == ["cgroup"] for option in mount[3].split(",")}
    found = [name for name in ("memory", "cpu", "pids") if name in options]
    return f"v1, controllers: {', '.join(found) or 'none'}" if options else "not mounted"


def _user_namespaces() -> str:
    most = _read("/proc/sys/user/max_user_namespaces")
    if most is None or most.strip() == "0":
        return "no"
    if os.geteuid() != 0:
        if (_read("/proc/sys/kernel/unprivileged_userns_clone") or "1").strip() == "0":
            return "root only (kernel.unprivileged_userns_clone is 0)"
        if (_read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") or "0").strip() == "1":
            return "restricted by AppArmor (kernel.apparmor_restrict_unprivileged_userns is 1)"
    return "yes"


def _overlayfs() -> str:
    known = (_read("/proc/filesystems") or "").split()
    return "yes" if "overlay" in known else "not loaded (as root: modprobe overlay)"


def _subordinate_ids() -> str:
    owners = (_user_name(), str(os.geteuid()))
    for line in (_read("/etc/subuid") or "").splitlines():
        owner, _, span = line.partition(":")
        if owner in owners and span:
            start, _, count = span.partition(":")
            return f"{count} from {start}"
    return "none in /etc/subuid"
