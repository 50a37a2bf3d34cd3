"""Digests of stages, computed before they are built: the same content has the same digest in every recipe.

A digest covers everything that can change the result of a stage: its parent's digest, its lines, environment,
directory and network, the targets and the content of its inputs. It does not cover the names of stages and recipes,
timeouts, and the paths of the inputs on this machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Final

from dutyfree.model.recipe import Stage

VERSION: Final = 1
"""Part of every digest. Increase it when a change of the builder changes the result of stages."""


def base_digest(kind: str, identity: Mapping[str, object]) -> str:
    """The digest of a base of this kind; `identity` distinguishes it from other bases of the kind."""
    return _digest({"base": kind, "identity": identity})


def stage_digest(parent: str, stage: Stage, file_fingerprints: Sequence[str]) -> str:
    """The digest of `stage` over `parent`; `file_fingerprints` are the fingerprints of `stage.files`, in order."""
    return _digest(
        {
            "parent": parent,
            "run": list(stage.run),
            "env": dict(stage.env),
            "cwd": stage.cwd,
            "network": stage.network.value,
            "files": [[given.target, print_] for given, print_ in zip(stage.files, file_fingerprints, strict=True)],
            "git": [[given.target, given.commit] for given in stage.git],
        }
    )


def _digest(content: Mapping[str, object]) -> str:
    canonical = json.dumps({"version": VERSION, **content}, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()
