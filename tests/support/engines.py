"""The engines that `make engines` prepared on this machine, for tests that need one."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dutyfree.contract import Substrate
from dutyfree.substrates.registry import load
from support.repository import ROOT

ENVIRONMENT = ROOT / ".build" / "engines" / "env"
ENGINES = ("docker", "docker-gvisor", "gvisor", "microvm", "vm")
MACHINES = ("microvm", "vm")
"""Where they are emulated, they compute all the time: their tests are in two groups of about the same length, so that
no more than two run beside each other. One is the conformance suite on `vm`, the other all the rest."""
OTHER_MACHINES = pytest.mark.xdist_group("machines")


@functools.cache
def engine_variables() -> Mapping[str, str]:
    """The environment variables that `scripts/engines` wrote; none if it has not run."""
    lines = ENVIRONMENT.read_text().splitlines() if ENVIRONMENT.exists() else []
    words = [word for line in lines for word in shlex.split(line)[1:]]
    return dict(word.split("=", 1) for word in words)


def engine(name: str, **options: Any) -> Substrate:
    """The substrate of this name, over the prepared engine and image. Not open yet."""
    for variable in ("DOCKER_HOST", "DUTYFREE_RUNSC", "DUTYFREE_KERNEL"):
        if variable in engine_variables():
            os.environ.setdefault(variable, engine_variables()[variable])
    if "DUTYFREE_STATE_DIR" in engine_variables():
        store = Path(engine_variables()["DUTYFREE_STATE_DIR"], "dutyfree", "images")
        # A machine starts from its own disk.
        image = {} if name == "vm" else {"image": engine_variables()["DUTYFREE_IMAGE"]}
        options = {**image, "store": store, **options}
    if name == "vm":
        options.setdefault("boot", "restore")
    return load(name, **options)
