"""What a sandbox uses, now and at its peak."""

from __future__ import annotations

from dutyfree.values import dataclass


@dataclass(frozen=True, slots=True)
class Metrics:
    """Measured at one moment. None means that it is not measured here, or that there is no limit; never 0 instead.

    It is what the machine spends on the sandbox: its guest included, and in gVisor and virtual machines also their own
    kernel. A reset begins anew.
    """

    taken_at: float
    """Seconds since 1970."""
    cpu_s: float | None = None
    """Processor time of all processes, ended ones included."""
    cpu_limit: float | None = None
    """Processors."""
    memory_bytes: int | None = None
    """Files that are kept in memory included."""
    memory_peak_bytes: int | None = None
    memory_limit_bytes: int | None = None
    disk_bytes: int | None = None
    """What was written, wherever it is kept."""
    disk_limit_bytes: int | None = None
    processes: int | None = None
    """Threads count, too, as they do for the limit."""
    processes_peak: int | None = None
    processes_limit: int | None = None
    network_received_bytes: int | None = None
    """Of all interfaces but the loopback."""
    network_sent_bytes: int | None = None
