"""Promises that a substrate of ours is known not to keep. A gap that has closed is a failure until it leaves here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KnownGap:
    """`substrate` does not keep the promise of `check`, because of `reason`."""

    substrate: str
    check: str
    reason: str
    cgroups_v1: bool = False
    """Only on a machine with version 1 of cgroups."""


KNOWN_GAPS = (
    *(
        KnownGap(substrate, "terminals.raw", "in gVisor's raw mode Ctrl-C still interrupts")
        for substrate in ("gvisor", "docker-gvisor")
    ),
    KnownGap(
        "gvisor", "snapshot.files", "gVisor keeps FIFOs to itself, and is off by milliseconds in directories' times"
    ),
    KnownGap("gvisor", "snapshot.save", "gVisor keeps FIFOs to itself"),
    KnownGap("docker", "snapshot.files", "`docker commit` keeps times to the second, and loses the mode of /"),
    KnownGap("docker", "snapshot.save", "`docker commit` keeps times to the second, and loses the mode of /"),
    KnownGap("docker", "fork.moment", "`docker commit` keeps times to the second"),
    KnownGap("microvm", "snapshot.save", "a snapshot is a whole machine, and not a layer"),
    KnownGap("cell", "snapshot.ipc", "a cell in which nothing runs is replaced by one with the same files"),
)

KNOWN_PROBE_GAPS = (
    *(
        KnownGap("vm", f"guest.{probe}", "in a whole machine process 1 is systemd, and actions are root beside it")
        for probe in ("look-at-descriptors", "steal-descriptor", "trace", "memory", "open-memory", "program")
    ),
    KnownGap("vm", "privileges.setuid", "a whole machine has ordinary users, and programs that make them root"),
    KnownGap(
        "vm", "network.interfaces", "a whole machine is reached by SSH, over a network card that leads nowhere else"
    ),
    *(
        KnownGap("docker", f"kernel.{probe}", "Docker 20.10's own filter of system calls lets it through")
        for probe in ("io-uring", "tiocsti", "i386-calls", "vsock-socket", "aio", "socket-filter", "port-filter")
    ),
    *(
        KnownGap("docker", f"kernel.netlink-{probe}-socket", "Docker's own filter of system calls lets it through")
        for probe in ("user", "diagnosis", "audit", "devices", "generic")
    ),
    *(
        KnownGap("docker", f"exhaustion.netlink-{probe}-buffers", "the kernel charges them to nobody")
        for probe in ("user", "route")
    ),
    *(
        KnownGap("docker", f"exhaustion.{probe}-buffers", "runc sets no limit for socket buffers", cgroups_v1=True)
        for probe in ("udp", "tcp")
    ),
    KnownGap("docker", "exhaustion.terminals", "Docker mounts /dev/pts without a limit"),
    *(
        KnownGap(
            substrate,
            f"processes.time-out-{way}-in-company",
            "without our filter of system calls a program can leave its tree, and nobody knows which action's it was",
        )
        for substrate in ("docker", "docker-gvisor", "gvisor", "microvm", "vm")
        for way in ("orphan", "sibling")
        if (way, "gvisor" in substrate) != ("sibling", True)
    ),
    *(
        KnownGap("docker", f"exhaustion.{probe}", "without a user namespace all containers' root is one account")
        for probe in ("host-watchers", "neighbour-watchers")
    ),
    *(
        KnownGap(substrate, probe, reason)
        for substrate in ("gvisor", "docker-gvisor")
        for probe, reason in (
            ("ordinary.calls", "gVisor has no pidfd_open"),
            ("ordinary.terminal", "gVisor answers the opening of /dev/tty with an error"),
            ("guest.look-at-descriptors", "gVisor shows /proc/1/fd to the sandbox's root"),
        )
    ),
)
"""The same for the isolation probes."""


def known_probe_gaps(substrate: str) -> dict[str, str]:
    """Probe id to reason, for the substrate of this name."""
    version_1 = not Path("/sys/fs/cgroup/cgroup.controllers").exists()
    gaps = [gap for gap in KNOWN_PROBE_GAPS if version_1 or not gap.cgroups_v1]
    return {gap.check: gap.reason for gap in gaps if gap.substrate == substrate}


def known_gaps(substrate: str) -> dict[str, str]:
    """Check id to reason, for the substrate of this name."""
    return {gap.check: gap.reason for gap in KNOWN_GAPS if gap.substrate == substrate}
