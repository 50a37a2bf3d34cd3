"""`dutyfree doctor` with every substrate of this machine."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from dutyfree.substrates import registry
from support.engines import OTHER_MACHINES, engine_variables
from support.shell import DUTYFREE


@pytest.mark.timeout(400)
@OTHER_MACHINES
def test_doctor_tries_every_substrate() -> None:
    # With what `make engines` got ready: otherwise a disk would be built for machines in the user's own store.
    environment = {**os.environ, **engine_variables()}
    # A bound for each, so that a busy machine does not make this test long: what is slow then has a problem to tell.
    words = [*DUTYFREE, "doctor", "--all", "--timeout", "60", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=380, env=environment)
    printed = json.loads(done.stdout)
    found = {each["name"]: each for each in printed["substrates"]}
    assert set(found) == set(registry.names())
    assert printed["not_tried"] == []
    assert found["process"]["works"]
    assert set(found["process"]["timings_ms"]) == {"create", "run", "destroy"}
    assert found["process"]["isolation"] == "none"
    assert done.returncode == (0 if found["cell"]["works"] else 1)
    for each in found.values():
        assert each["works"] or each["problem"]
    assert {"kernel", "cgroups", "user namespaces", "overlayfs", "user"} <= set(printed["host"])
