"""Local virtual machines for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dutyfree.model import Resources, SandboxSpec
from dutyfree.substrates.vm import VMSubstrate
from support.engines import engine_variables

MIB = 1024 * 1024
SMALL = SandboxSpec(Resources(memory_bytes=256 * MIB, cpus=1, disk_bytes=256 * MIB))


def machines(**options: Any) -> VMSubstrate:
    """Uses the image store that `make engines` prepared, so that bases and saved machines are made once."""
    if "DUTYFREE_STATE_DIR" in engine_variables():
        options.setdefault("store", Path(engine_variables()["DUTYFREE_STATE_DIR"], "dutyfree", "images"))
    return VMSubstrate(**options)
