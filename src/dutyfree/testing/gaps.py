"""Known gaps: promises that a substrate of ours does not keep. The suite fails for a gap here that has closed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KnownGap:
    """`substrate` does not keep the promise of `check`, because of `reason`.

    `hosted-exec` is `hosted` on the exec path: its actions are calls of another SDK, not of our guest.
    """

    substrate: str
    check: str
    reason: str
    cgroups_v1: bool = False
    """Whether the gap exists only on a machine with cgroups v1."""


KNOWN_GAPS = (
    *(
        KnownGap(substrate, "terminals.raw", "in gVisor's raw mode Ctrl-C still interrupts")
        for substrate in ("gvisor", "docker-gvisor")
    ),
    KnownGap("gvisor", "snapshot.files", "gVisor does not export FIFOs, and directory times are off by milliseconds"),
    KnownGap("gvisor", "snapshot.save", "gVisor does not export FIFOs"),
    KnownGap("docker", "snapshot.files", "`docker commit` rounds times to seconds and loses the mode of /"),
    KnownGap("docker", "snapshot.save", "`docker commit` rounds times to seconds and loses the mode of /"),
    KnownGap("docker", "fork.moment", "`docker commit` rounds times to seconds"),
    KnownGap("microvm", "snapshot.save", "a snapshot is a whole virtual machine, not a layer"),
    KnownGap("hosted", "reset.environment", "the hostname is the service's: ours does not let a sandbox change it"),
    *(
        KnownGap("hosted-exec", check, "the SDK decodes output as UTF-8, which loses other bytes")
        for check in (
            *("run.stdin", "run.stdin-large", "run.binary-output", "streaming.input", "streaming.input-large"),
            *("background.input", "files.round-trip"),
        )
    ),
    *(
        KnownGap(
            "hosted-exec", check, "a command is one word of `bash -c`, and Linux has a limit of 128 KiB for a word"
        )
        for check in ("run.huge-argv", "files.list-many")
    ),
    *(
        KnownGap("hosted-exec", check, "the SDK sends no signal but SIGKILL")
        for check in ("streaming.signal", "background.signal")
    ),
    KnownGap("hosted-exec", "run.signal", "the SDK's commands run in bash, which gives 128 + N for signal N"),
    *(
        KnownGap("hosted-exec", f"files.{check}", "the SDK transfers files, not directories")
        for check in ("tree", "tree-into", "download-links", "download-limit")
    ),
    *(
        KnownGap(
            substrate,
            "snapshot.ipc",
            "a snapshot replaces a cell without running processes by a new cell with the same files",
        )
        for substrate in ("cell", "server")
    ),
    *(
        KnownGap("server", check, "leases, which sandboxes of a server are, cannot choose a hostname")
        for check in ("reset.environment", "snapshot.between-actions", "fork.moment")
    ),
)

KNOWN_PROBE_GAPS = (
    *(
        KnownGap("vm", f"guest.{probe}", "in a VM process 1 is systemd, and actions run as root beside it")
        for probe in ("look-at-descriptors", "steal-descriptor", "trace", "memory", "open-memory", "program")
    ),
    KnownGap("vm", "privileges.setuid", "a VM has ordinary users and set-user-id programs such as sudo"),
    KnownGap("vm", "network.interfaces", "the host reaches a VM by SSH over a network card that has no other route"),
    *(
        KnownGap("docker", f"kernel.{probe}", "Docker 20.10's seccomp profile allows it")
        for probe in ("io-uring", "tiocsti", "i386-calls", "vsock-socket", "aio", "socket-filter", "port-filter")
    ),
    *(
        KnownGap("docker", f"kernel.netlink-{probe}-socket", "Docker's seccomp profile allows it")
        for probe in ("user", "diagnosis", "audit", "devices", "generic")
    ),
    *(
        KnownGap(
            "docker", f"exhaustion.netlink-{probe}-buffers", "the kernel charges these buffers to no control group"
        )
        for probe in ("user", "route")
    ),
    *(
        KnownGap("docker", f"exhaustion.{probe}-buffers", "runc sets no limit for socket buffers", cgroups_v1=True)
        for probe in ("udp", "tcp")
    ),
    *(
        KnownGap("docker", f"mounts.{probe}", "a container has the host's own inodes in what is mounted")
        for probe in ("sockets", "pipes", "locks")
    ),
    KnownGap("docker", "exhaustion.terminals", "Docker mounts /dev/pts without a limit"),
    *(
        KnownGap(
            substrate,
            f"processes.time-out-{way}-in-company",
            "without our seccomp filter a process can leave its action's process tree",
        )
        for substrate in ("docker", "docker-gvisor", "gvisor", "microvm", "vm")
        for way in ("orphan", "sibling")
        if (way, "gvisor" in substrate) != ("sibling", True)
    ),
    *(
        KnownGap("docker", f"exhaustion.{probe}", "without user namespaces root is the same user in all containers")
        for probe in ("host-watchers", "neighbour-watchers")
    ),
    *(
        KnownGap(substrate, probe, reason)
        for substrate in ("gvisor", "docker-gvisor")
        for probe, reason in (
            ("ordinary.calls", "gVisor has no pidfd_open"),
            ("ordinary.terminal", "opening /dev/tty fails in gVisor"),
            ("guest.look-at-descriptors", "gVisor shows /proc/1/fd to the sandbox's root"),
            ("accounts.guest-descriptors", "gVisor shows the names in /proc/PID/fd to every user"),
            ("accounts.environment", "gVisor lets every user read /proc/PID/environ of all processes"),
        )
    ),
)
"""Known gaps of the isolation probes."""


def known_probe_gaps(substrate: str) -> dict[str, str]:
    """Probe id to reason, for the substrate of this name."""
    version_1 = not Path("/sys/fs/cgroup/cgroup.controllers").exists()
    gaps = [gap for gap in KNOWN_PROBE_GAPS if version_1 or not gap.cgroups_v1]
    return {gap.check: gap.reason for gap in gaps if gap.substrate == substrate}


def known_gaps(substrate: str) -> dict[str, str]:
    """Check id to reason, for the substrate of this name."""
    return {gap.check: gap.reason for gap in KNOWN_GAPS if gap.substrate == substrate}
