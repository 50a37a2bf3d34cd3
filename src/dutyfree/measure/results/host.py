"""Facts about the machine, which are recorded with every result."""

from __future__ import annotations

import os
import platform
from typing import Any

from dutyfree import __version__, machine
from dutyfree.places import state_directory


def host_facts() -> dict[str, Any]:
    """JSON values by name. They differ only on another machine or with another version of Dutyfree or Python."""
    memory_bytes = machine.memory_bytes()
    return {
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "cpu": machine.cpu(),
        "cores": machine.cores(),
        "memory": machine.UNKNOWN if memory_bytes is None else f"{memory_bytes / 1024**3:.1f} GiB",
        "cgroups": machine.cgroups(),
        "file system": machine.file_system(state_directory()),
        "user": "root" if os.geteuid() == 0 else "ordinary user",
        "python": platform.python_version(),
        "dutyfree": __version__,
    }
